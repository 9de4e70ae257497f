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
INSERT INTO "privbo_plays" VALUES('caf840d4902f37dd41ac33eaf40d0b17','0','ee862462e0668f33b3869966eb9831ba5716dbff01a58e8fee9b5cd268f459bb',2.0,0.0,1.99506680060852259472e+00);
INSERT INTO "privbo_plays" VALUES('caf840d4902f37dd41ac33eaf40d0b17','1','80648b5a41dbfa8bfad1d9024db7f1b584f221ecf6bb91124c8d7bd238b25206',2.0,0.0,4.89096166486736705358e-01);
INSERT INTO "privbo_plays" VALUES('caf840d4902f37dd41ac33eaf40d0b17','2','ee862462e0668f33b3869966eb9831ba5716dbff01a58e8fee9b5cd268f459bb',2.0,0.0,-8.50320409320377224027e-01);
INSERT INTO "privbo_plays" VALUES('caf840d4902f37dd41ac33eaf40d0b17','3','80648b5a41dbfa8bfad1d9024db7f1b584f221ecf6bb91124c8d7bd238b25206',2.0,0.0,5.74716052174103);
CREATE TABLE privbo_releases (
	run_id VARCHAR(32) NOT NULL, 
	seq INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	"key" VARCHAR(160) NOT NULL, 
	payload TEXT NOT NULL, 
	PRIMARY KEY (run_id, seq), 
	UNIQUE (run_id, kind, "key")
);
CREATE TABLE privbo_runs (
	run_id VARCHAR(32) NOT NULL, 
	host_key VARCHAR(512) NOT NULL, 
	settings TEXT NOT NULL, 
	frozen TEXT, 
	PRIMARY KEY (run_id), 
	UNIQUE (host_key)
);
INSERT INTO "privbo_runs" VALUES('caf840d4902f37dd41ac33eaf40d0b17','optuna-ldp/d5ffd98cb04340ddb95e8ae0a590440a','{"mechanism": "laplace", "epsilon": 2.0, "delta": 0.0, "low": -1.0, "high": 1.0, "user_budget": null}',NULL);
CREATE TABLE privbo_tables (
	run_id VARCHAR(32) NOT NULL, 
	table_name VARCHAR(16) NOT NULL, 
	block INTEGER NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (run_id, table_name, block)
);
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
INSERT INTO "privbo_vault" VALUES(1,'a4744972c6a04db893dfe2d5c2477b75');
CREATE INDEX privbo_trials_step ON privbo_trials (run_id, step);
CREATE INDEX privbo_plays_person ON privbo_plays (person);
COMMIT;
