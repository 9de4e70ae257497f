BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('v3.2.0.a');
CREATE TABLE studies (
	study_id INTEGER NOT NULL, 
	study_name VARCHAR(512) NOT NULL, 
	PRIMARY KEY (study_id)
);
INSERT INTO "studies" VALUES(1,'tuning');
CREATE TABLE study_directions (
	study_direction_id INTEGER NOT NULL, 
	direction VARCHAR(8) NOT NULL, 
	study_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	PRIMARY KEY (study_direction_id), 
	UNIQUE (study_id, objective), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_directions" VALUES(1,'MAXIMIZE',1,0);
CREATE TABLE study_system_attributes (
	study_system_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_system_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
CREATE TABLE study_user_attributes (
	study_user_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_user_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_user_attributes" VALUES(1,1,'privbo:ldp','{"run": "d5ffd98cb04340ddb95e8ae0a590440a", "vault": "a4744972c6a04db893dfe2d5c2477b75", "study": "tuning/1"}');
INSERT INTO "study_user_attributes" VALUES(2,1,'privbo:guarantee','"Every reward that this run publishes is 2-LDP (local differential privacy): it was clipped and privatised in the process that evaluated it. Protected: each user, against everybody else, the tuner included. Neighbouring relation: any two rewards whatsoever of the same user in the same play. Mechanism: clipping to the public range, Laplace noise (OpenDP, on a fixed grid). Parameters: mechanism=laplace, epsilon=2, delta=0, low=-1, high=1. Released so far: 4 plays. The user asked most often had 2 plays: epsilon = 4.00. Not covered: what the user was shown (the parameters of each trial), and that the user took part; whether a trial fails or is pruned, and run times; what the objective itself prints, logs, writes or sends before it returns the reward; the process and the machine on which the objective runs: the raw reward is there; training data and everything else the objective reads, unless one reward is all of it that the trial depends on; names, ranges, choices and constants of the search space, which are stored as they are; the same user''s rewards in other studies: their epsilons add up. Note: the objective declared what it gave to trial.report public. Note: the objective declared what it gave to trial.set_user_attr public."');
CREATE TABLE trial_heartbeats (
	trial_heartbeat_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	heartbeat DATETIME NOT NULL, 
	PRIMARY KEY (trial_heartbeat_id), 
	UNIQUE (trial_id), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_intermediate_values (
	trial_intermediate_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	intermediate_value FLOAT, 
	intermediate_value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_intermediate_value_id), 
	UNIQUE (trial_id, step), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_intermediate_values" VALUES(1,1,1,0.5,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(2,2,1,0.5,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(3,3,1,0.5,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(4,4,1,0.5,'FINITE');
CREATE TABLE trial_params (
	param_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	param_name VARCHAR(512), 
	param_value FLOAT, 
	distribution_json TEXT, 
	PRIMARY KEY (param_id), 
	UNIQUE (trial_id, param_name), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_params" VALUES(1,1,'x',0.417022004702574,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(2,2,'x',1.0,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(3,3,'x',0.0,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(4,4,'x',7.12945598795556412241e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
CREATE TABLE trial_system_attributes (
	trial_system_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_system_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_user_attributes (
	trial_user_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_user_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_user_attributes" VALUES(1,1,'privbo:vouched','["report", "set_user_attr"]');
INSERT INTO "trial_user_attributes" VALUES(2,1,'epochs','3');
INSERT INTO "trial_user_attributes" VALUES(3,1,'privbo:play','{"mechanism": "laplace", "epsilon": 2.0, "delta": 0.0, "low": -1.0, "high": 1.0, "release": 1.9950668006085226, "user_named": true, "test_noise": false}');
INSERT INTO "trial_user_attributes" VALUES(4,2,'privbo:vouched','["report", "set_user_attr"]');
INSERT INTO "trial_user_attributes" VALUES(5,2,'epochs','3');
INSERT INTO "trial_user_attributes" VALUES(6,2,'privbo:play','{"mechanism": "laplace", "epsilon": 2.0, "delta": 0.0, "low": -1.0, "high": 1.0, "release": 0.4890961664867367, "user_named": true, "test_noise": false}');
INSERT INTO "trial_user_attributes" VALUES(7,3,'privbo:vouched','["report", "set_user_attr"]');
INSERT INTO "trial_user_attributes" VALUES(8,3,'epochs','3');
INSERT INTO "trial_user_attributes" VALUES(9,3,'privbo:play','{"mechanism": "laplace", "epsilon": 2.0, "delta": 0.0, "low": -1.0, "high": 1.0, "release": -0.8503204093203772, "user_named": true, "test_noise": false}');
INSERT INTO "trial_user_attributes" VALUES(10,4,'privbo:vouched','["report", "set_user_attr"]');
INSERT INTO "trial_user_attributes" VALUES(11,4,'epochs','3');
INSERT INTO "trial_user_attributes" VALUES(12,4,'privbo:play','{"mechanism": "laplace", "epsilon": 2.0, "delta": 0.0, "low": -1.0, "high": 1.0, "release": 5.74716052174103, "user_named": true, "test_noise": false}');
CREATE TABLE trial_values (
	trial_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	value FLOAT, 
	value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_value_id), 
	UNIQUE (trial_id, objective), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_values" VALUES(1,1,0,1.99506680060852259472e+00,'FINITE');
INSERT INTO "trial_values" VALUES(2,2,0,4.89096166486736705358e-01,'FINITE');
INSERT INTO "trial_values" VALUES(3,3,0,-8.50320409320377224027e-01,'FINITE');
CREATE TABLE trials (
	trial_id INTEGER NOT NULL, 
	number INTEGER, 
	study_id INTEGER, 
	state VARCHAR(8) NOT NULL, 
	datetime_start DATETIME, 
	datetime_complete DATETIME, 
	PRIMARY KEY (trial_id), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "trials" VALUES(1,0,1,'COMPLETE','2026-11-22 12:24:20.812335','2026-11-22 12:24:21.280913');
INSERT INTO "trials" VALUES(2,1,1,'COMPLETE','2026-11-22 12:24:21.300850','2026-11-22 12:24:21.367481');
INSERT INTO "trials" VALUES(3,2,1,'COMPLETE','2026-11-22 12:24:21.388419','2026-11-22 12:24:21.582034');
INSERT INTO "trials" VALUES(4,3,1,'RUNNING','2026-11-22 12:24:21.599704',NULL);
CREATE TABLE version_info (
	version_info_id INTEGER NOT NULL, 
	schema_version INTEGER, 
	library_version VARCHAR(256), 
	PRIMARY KEY (version_info_id), 
	CHECK (version_info_id=1)
);
INSERT INTO "version_info" VALUES(1,12,'5.0.0');
CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name);
CREATE INDEX ix_trials_study_id ON trials (study_id);
COMMIT;
