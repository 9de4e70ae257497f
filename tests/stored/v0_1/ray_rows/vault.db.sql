BEGIN TRANSACTION;
CREATE TABLE privbo_ledger (
	run_id VARCHAR(32) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	"key" VARCHAR(160) NOT NULL, 
	mu DOUBLE NOT NULL, 
	sensitivity DOUBLE NOT NULL, 
	scale DOUBLE NOT NULL, 
	population VARCHAR(16) NOT NULL, 
	PRIMARY KEY (run_id, kind, "key")
);
INSERT INTO "privbo_ledger" VALUES('8917d4ba74c9ae4f2443d3d848fdd6da','table','0',8.37858756252138681119e-01,0.3000000003,3.58055918331914468932e-01,'rows');
CREATE TABLE privbo_losses (
	run_id VARCHAR(32) NOT NULL, 
	trial VARCHAR(128) NOT NULL, 
	block INTEGER NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (run_id, trial, block)
);
CREATE TABLE privbo_marks (
	run_id VARCHAR(32) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	text VARCHAR(512) NOT NULL, 
	PRIMARY KEY (run_id, kind, text)
);
CREATE TABLE privbo_plays (
	run_id VARCHAR(32) NOT NULL, 
	trial VARCHAR(128) NOT NULL, 
	person VARCHAR(64) NOT NULL, 
	epsilon DOUBLE NOT NULL, 
	delta DOUBLE NOT NULL, 
	value DOUBLE, 
	PRIMARY KEY (run_id, trial)
);
INSERT INTO "privbo_plays" VALUES('ad779e6e15ee1416aa1a3855519b97a6','12','715d00e427b180ca00f5f88d5e02edd60888c38063ba089b473e5edf939460a4',4.0,0.0,1.0000434245351330631e+00);
INSERT INTO "privbo_plays" VALUES('ad779e6e15ee1416aa1a3855519b97a6','8','2cfb7c28a3ad2688af3c8269d9c04c7b8dc06109b335d49ec325a80ca1aa81a7',4.0,0.0,7.72428003632970705538e-01);
INSERT INTO "privbo_plays" VALUES('ad779e6e15ee1416aa1a3855519b97a6','14','8d7e0cfa16ad6a8bb987f0b119344801d00b5f8c04b53fad8881764b8475b3a0',4.0,0.0,9.36793619361445228932e-01);
CREATE TABLE privbo_releases (
	run_id VARCHAR(32) NOT NULL, 
	seq INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	"key" VARCHAR(160) NOT NULL, 
	payload TEXT NOT NULL, 
	PRIMARY KEY (run_id, seq), 
	UNIQUE (run_id, kind, "key")
);
INSERT INTO "privbo_releases" VALUES('8917d4ba74c9ae4f2443d3d848fdd6da',1,'table','0','{"mechanism": "gaussian", "n": 24, "d": 2, "r": 2, "epsilon": 4.0, "delta": 1e-06, "mu": 0.8378587562521387, "neighbor_distance": 0.3, "norm_bound": 0.7071067811865476, "on_excess": "clip", "sensitivity": 0.3000000003, "noise_sd": 0.35805591833191447, "projection": {"kind": "identity"}, "scaling": {"columns": ["age", "bmi"], "low": [18.0, 10.0], "high": [98.0, 60.0]}, "noise": "the operating system''s entropy (OpenDP)", "protected": true, "reasons": [], "outcomes": {"outcome_epsilon": 4.0, "outcome_range": [0.0, 1.0], "outcome_mechanism": "laplace", "outcome_delta": null}, "ledger": {"vault": "aea6514156994b6cb8f6c6d9920ca038", "run": "clinic", "store": "database"}, "digest": "9bc8184fc3adcfc7be0c4b6a2eb57561d21e5694813fafaaf2eaa7b532e4fe83"}');
CREATE TABLE privbo_runs (
	run_id VARCHAR(32) NOT NULL, 
	host_key VARCHAR(512) NOT NULL, 
	settings TEXT NOT NULL, 
	frozen TEXT, 
	PRIMARY KEY (run_id), 
	UNIQUE (host_key)
);
INSERT INTO "privbo_runs" VALUES('8917d4ba74c9ae4f2443d3d848fdd6da','outsourced:clinic','{"mechanism": "gaussian", "n": 24, "d": 2, "r": 2, "epsilon": 4.0, "delta": 1e-06, "neighbor_distance": 0.3, "norm_bound": 0.7071067811865476, "on_excess": "clip", "scaling": {"columns": ["age", "bmi"], "low": [18.0, 10.0], "high": [98.0, 60.0]}, "projection_seed": 0, "outcomes": {"outcome_epsilon": 4.0, "outcome_range": [0.0, 1.0], "outcome_mechanism": "laplace", "outcome_delta": null}}',NULL);
INSERT INTO "privbo_runs" VALUES('ad779e6e15ee1416aa1a3855519b97a6','outcomes:clinic','{"mechanism": "laplace", "epsilon": 4.0, "delta": 0.0, "low": 0.0, "high": 1.0, "user_budget": null}',NULL);
CREATE TABLE privbo_tables (
	run_id VARCHAR(32) NOT NULL, 
	table_name VARCHAR(16) NOT NULL, 
	block INTEGER NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (run_id, table_name, block)
);
INSERT INTO "privbo_tables" VALUES('8917d4ba74c9ae4f2443d3d848fdd6da','table',0,X'CD5AFD445C0CE13F55D44DF0E74DD5BFE43405DF8497C4BF68B38EE56F5BC33FD171852A4AECE1BF6F0ABBC34F7BA63F83B14A0D7689E4BFEAAEBC51D6F99BBFB2276380314FF0BF1E87DB459F56CC3FE187804FE9A89EBF28EC82AAAA02D1BFD1BB4A30DA24DB3F27406053A3BBC43F745566C6979BD03FA3EF53F5C1D1C73FCBD0700F47EFD7BF2433FC5150BEE4BF6D413CC431BB99BF8607004B22E2B53F96CBF6FF90C3DF3F256ECE01E001923F7C6E1C6C6AB7D63F62A3770A5EA8B93FF294EB59EA02E23F5470F8F8027ACD3F5EFF69FF57C0D93F8C17271D8BB3DC3FC4C9939A1C93F43FE99F47C3FC95D7BF885F4BB6388072BF8D9B837B27B3D0BF23B68C9A2BF8EC3FBBCFB78D58EAD4BFAE11F1049DFDC53F47E0FACFE824C73F837BB3436CC4DF3FE28DEFDA0CD3E73F5E5BCA1310F8D1BFFC43CCE33E93C33F5DC4AC1BDA62773F5D61876C58BCF33F1A150DBBE586D13FD60FA40C0CDED6BF84789F9D3F1CD4BFB87D8259DD5B7B3F5DDC42151AC7C63F9A422881CA62C7BF');
CREATE TABLE privbo_trials (
	run_id VARCHAR(32) NOT NULL, 
	trial VARCHAR(128) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	step INTEGER NOT NULL, 
	slot INTEGER NOT NULL, 
	x BLOB NOT NULL, 
	state VARCHAR(8) NOT NULL, 
	value DOUBLE, 
	PRIMARY KEY (run_id, trial)
);
CREATE TABLE privbo_vault (
	one INTEGER NOT NULL, 
	vault_id VARCHAR(32) NOT NULL, 
	PRIMARY KEY (one)
);
INSERT INTO "privbo_vault" VALUES(1,'aea6514156994b6cb8f6c6d9920ca038');
CREATE INDEX privbo_trials_step ON privbo_trials (run_id, step);
CREATE INDEX privbo_plays_person ON privbo_plays (person);
COMMIT;
