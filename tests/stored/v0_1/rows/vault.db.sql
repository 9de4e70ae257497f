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
INSERT INTO "privbo_plays" VALUES('ad779e6e15ee1416aa1a3855519b97a6','12','6b103dec281caeee343974ec3e9c7ec074cf76f3e721e87f1c81f4b477269d3b',4.0,0.0,1.24411865045119984785e+00);
INSERT INTO "privbo_plays" VALUES('ad779e6e15ee1416aa1a3855519b97a6','16','49cd3d735a23ddc45ea6e941a26a2de02ddf281bcbafee36f17574fd865ef6f6',4.0,0.0,4.53454175332783759877e-01);
INSERT INTO "privbo_plays" VALUES('ad779e6e15ee1416aa1a3855519b97a6','14','f271c54c2e84cd05d949b5b2b0a1c3d0c3ee525a6aa070f0e68f569bac335e43',4.0,0.0,3.74893619219352380866e-01);
INSERT INTO "privbo_plays" VALUES('ad779e6e15ee1416aa1a3855519b97a6','18','ab2ae1873c9611cce7129e45a37b007de94ee3f9b1dbd273b8bf7c10192b8f83',4.0,0.0,0.686618245169131);
CREATE TABLE privbo_releases (
	run_id VARCHAR(32) NOT NULL, 
	seq INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	"key" VARCHAR(160) NOT NULL, 
	payload TEXT NOT NULL, 
	PRIMARY KEY (run_id, seq), 
	UNIQUE (run_id, kind, "key")
);
INSERT INTO "privbo_releases" VALUES('8917d4ba74c9ae4f2443d3d848fdd6da',1,'table','0','{"mechanism": "gaussian", "n": 24, "d": 2, "r": 2, "epsilon": 4.0, "delta": 1e-06, "mu": 0.8378587562521387, "neighbor_distance": 0.3, "norm_bound": 0.7071067811865476, "on_excess": "clip", "sensitivity": 0.3000000003, "noise_sd": 0.35805591833191447, "projection": {"kind": "identity"}, "scaling": {"columns": ["age", "bmi"], "low": [18.0, 10.0], "high": [98.0, 60.0]}, "noise": "the operating system''s entropy (OpenDP)", "protected": true, "reasons": [], "outcomes": {"outcome_epsilon": 4.0, "outcome_range": [0.0, 1.0], "outcome_mechanism": "laplace", "outcome_delta": null}, "ledger": {"vault": "722dfece3bb848ff97729f9af9278a2b", "run": "clinic", "store": "database"}, "digest": "6c25a85b3aee84d2f718ac94716fdd80ae7e9d12323b30afd0287139aa5e974e"}');
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
INSERT INTO "privbo_tables" VALUES('8917d4ba74c9ae4f2443d3d848fdd6da','table',0,X'AC050633849DC03F6C50360225ECE23F9C2F1C36BAF19C3FA93A8536926DD1BF45F02277313EBFBFFD783CFFA1CAD7BF0854F81E17C3E5BF0897DE4302B3E8BF35D8D5B5E361E4BF0F90CBF55B20D03FB40C6D094FF579BF3C2BFA2B9376C23FD46BE2120833A53F8469F97B1893AF3F878010B5885BE03F30A85607DC0ED43F60B14EDAA444CDBF7AAF5CAFB95DCDBF1623204922C39ABF09DF0E278A4AE2BF905BBC4F78B6CDBF4FDA3BEDEE33E1BFEEC1863481D9E23FE5B5C2568263C9BFA4E900B93271E83F03F4D6E80F55B4BF6D9BC0333811D6BF5D50AB019AD5D1BF665A8C39CF46B13F1D7A1E63CD00EABF3D09421A07FDD73F0D6474ECDD08D7BF3E34D4A002BBD83FB996339F64D5DB3F86FA291953D9A43FACE1E35020E8DABF1D782C278E6BF03FC78F5C752FA0D53F52E1E53DC9E483BFD41B2DF8E127E73F5DFE4FE3B72AE8BF6D8667A7D492C23F29176995A796EA3FD1D69500ED24EA3F2F2ECC402D16DD3F4A92688971E8E13FC562911B8031D33FD52847E9484DCFBF');
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
INSERT INTO "privbo_vault" VALUES(1,'722dfece3bb848ff97729f9af9278a2b');
CREATE INDEX privbo_trials_step ON privbo_trials (run_id, step);
CREATE INDEX privbo_plays_person ON privbo_plays (person);
COMMIT;
