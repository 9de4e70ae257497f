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
INSERT INTO "privbo_plays" VALUES('ad21f203c4da2326343dbf42d0ec261d','0','a7b4de978f4ca5022ab97c9f0e1f05bce0308eb0890fa8d34d77d12a58fbcef0',2.0,0.0,1.15651764274999502291e+00);
INSERT INTO "privbo_plays" VALUES('ad21f203c4da2326343dbf42d0ec261d','1','82225508f7d01023a991146976bb88a516f1eb28d3b468dfdbff9fc92ff962ec',2.0,0.0,-1.56517642749995133932e-01);
INSERT INTO "privbo_plays" VALUES('ad21f203c4da2326343dbf42d0ec261d','2','a7b4de978f4ca5022ab97c9f0e1f05bce0308eb0890fa8d34d77d12a58fbcef0',2.0,0.0,1.15651764274999502291e+00);
INSERT INTO "privbo_plays" VALUES('ad21f203c4da2326343dbf42d0ec261d','3','82225508f7d01023a991146976bb88a516f1eb28d3b468dfdbff9fc92ff962ec',2.0,0.0,-1.56517642749995133932e-01);
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
INSERT INTO "privbo_runs" VALUES('ad21f203c4da2326343dbf42d0ec261d','optuna-ldp/75d328bc3f15494ebaff0fad9960c606','{"mechanism": "duchi", "epsilon": 2.0, "delta": 0.0, "low": 0.0, "high": 1.0, "user_budget": null}',NULL);
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
INSERT INTO "privbo_vault" VALUES(1,'4b1407c9cc904b7ea33b0a927ad72332');
CREATE INDEX privbo_trials_step ON privbo_trials (run_id, step);
CREATE INDEX privbo_plays_person ON privbo_plays (person);
COMMIT;
