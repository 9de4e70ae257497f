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
INSERT INTO "privbo_ledger" VALUES('814c88f45f457b34315dd52d77c6a027','broadcast','1',1.0,4.0,4.000003814697265625e+00,'agents');
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
INSERT INTO "privbo_releases" VALUES('814c88f45f457b34315dd52d77c6a027',1,'broadcast','1','{"weights": [[-6.393976552149246, -8.769926425147407, 3.2897107161687735, 7.140298939568762, 9.918778961342012, 16.14838122837706, 8.510288825666038, 3.6342829883096632], [1.1099921382234144, -9.07986240330879, 7.770336818060941, 19.348105823758814, 2.1607070553463643, -7.149779429921326, 2.5623453834937724, -3.695446522592301]], "noise": [8.000005182174382, 8.000005182174382]}');
CREATE TABLE privbo_runs (
	run_id VARCHAR(32) NOT NULL, 
	host_key VARCHAR(512) NOT NULL, 
	settings TEXT NOT NULL, 
	frozen TEXT, 
	PRIMARY KEY (run_id), 
	UNIQUE (host_key)
);
INSERT INTO "privbo_runs" VALUES('814c88f45f457b34315dd52d77c6a027','federation:hospitals','{"n_agents": 2, "epsilon": null, "delta": 0.05, "n_rounds": 3, "q": 0.5, "z": 1.0, "clipping_norm": 4.0, "n_regions": 2, "n_features": 8, "value_range": [0.0, 1.0], "n_startup": 2, "crowd": "explore", "prior": {"level": 0.65, "level_sd": 0.06, "shared_lengthscale": 0.8, "shared_sd": 0.045, "own_lengthscale": 0.18, "own_sd": 0.08, "noise_sd": 0.015, "doubt": 0.2}, "beta": 2.0, "lengthscale": 0.2, "noise_variance": 0.0001, "power": 1, "temperature": {"start": 15.0, "hold": 10, "fade": 30}, "feature_seed": 0, "noise_multiplier": 1.0}','{"space": {"x": {"type": "float", "low": 0.0, "high": 1.0, "log": false, "step": null}}}');
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
INSERT INTO "privbo_vault" VALUES(1,'ae61271bc54f4ef28c448901b3f0bfcb');
CREATE INDEX privbo_trials_step ON privbo_trials (run_id, step);
CREATE INDEX privbo_plays_person ON privbo_plays (person);
COMMIT;
