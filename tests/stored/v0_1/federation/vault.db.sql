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
INSERT INTO "privbo_ledger" VALUES('814c88f45f457b34315dd52d77c6a027','broadcast','1',1.7311918850380387802e+00,9.19696126758745152729e-02,5.31250759547727408049e-02,'agents');
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
INSERT INTO "privbo_releases" VALUES('814c88f45f457b34315dd52d77c6a027',1,'broadcast','1','{"weights": [[-0.040595804552612004, -0.019833836886330093, -0.01129718910436453, 0.029558347094904666, 0.027437439581216385, 0.003005590214364647, -0.011531011159743984, 0.10052718209128597, 0.057081741083746085, 0.03549066393903118, -0.0009823875994712972, 0.012201871393709113, -0.06043252428669611, 0.01622842109136554, -0.05703360633238744, -0.07261359831049699]], "noise": [0.02656253797738637]}');
CREATE TABLE privbo_runs (
	run_id VARCHAR(32) NOT NULL, 
	host_key VARCHAR(512) NOT NULL, 
	settings TEXT NOT NULL, 
	frozen TEXT, 
	PRIMARY KEY (run_id), 
	UNIQUE (host_key)
);
INSERT INTO "privbo_runs" VALUES('814c88f45f457b34315dd52d77c6a027','federation:hospitals','{"n_agents": 2, "epsilon": 8.0, "delta": 0.01, "n_rounds": 2, "q": 1.0, "z": null, "clipping_norm": null, "n_regions": 1, "n_features": null, "value_range": [0.0, 1.0], "n_startup": 1, "crowd": "prior", "prior": {"level": 0.65, "level_sd": 0.06, "shared_lengthscale": 0.8, "shared_sd": 0.045, "own_lengthscale": 0.18, "own_sd": 0.08, "noise_sd": 0.015, "doubt": 0.2}, "beta": 2.0, "lengthscale": 0.2, "noise_variance": 0.0001, "power": 1, "temperature": {"start": 15.0, "hold": 10, "fade": 30}, "feature_seed": 0, "noise_multiplier": 0.57763671875}','{"space": {"x": {"type": "float", "low": 0.0, "high": 1.0, "log": false, "step": null}}}');
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
INSERT INTO "privbo_vault" VALUES(1,'7517d239fcfd4448827e855e38601799');
CREATE INDEX privbo_trials_step ON privbo_trials (run_id, step);
CREATE INDEX privbo_plays_person ON privbo_plays (person);
COMMIT;
