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
INSERT INTO "privbo_runs" VALUES('6c17b0cff5796f0aa381f29b4291335a','agent:hospitals/north','{"space": {"x": {"type": "float", "low": 0.0, "high": 1.0, "log": false, "step": null}}}',NULL);
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
INSERT INTO "privbo_trials" VALUES('6c17b0cff5796f0aa381f29b4291335a','000000','agent',0,0,X'5C246FBED760D03F','done',9.55910812350128313852e-01);
INSERT INTO "privbo_trials" VALUES('6c17b0cff5796f0aa381f29b4291335a','000001','agent',0,1,X'0000000000000000','done',0.7);
CREATE TABLE privbo_vault (
	one INTEGER NOT NULL, 
	vault_id VARCHAR(32) NOT NULL, 
	PRIMARY KEY (one)
);
INSERT INTO "privbo_vault" VALUES(1,'d1b08e34d09446b6925c28d190c683ab');
CREATE INDEX privbo_trials_step ON privbo_trials (run_id, step);
CREATE INDEX privbo_plays_person ON privbo_plays (person);
COMMIT;
