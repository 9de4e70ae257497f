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
INSERT INTO "study_directions" VALUES(1,'MINIMIZE',1,0);
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
INSERT INTO "study_user_attributes" VALUES(1,1,'privbo:run','{"run": "e29f4057a14d496689fac25fbd951c4b", "vault": "9a992c3e2a8647a8af5a16524d4a5fb7"}');
INSERT INTO "study_user_attributes" VALUES(2,1,'privbo:guarantee','"Everything this run publishes is 2-GDP (Gaussian differential privacy, mu = 2; rho = 2 zero-concentrated DP exactly, mu-GDP up to the noise library''s grid; epsilon = 7.59 at delta = 1e-03) for the validation records (n = 60). Neighbouring relation: replace-one (two data sets that differ in one validation record). Mechanism: Gaussian noise from the operating system''s entropy on means of per-record gradients clipped in L2 norm, on means of clipped values; every release is post-processed only. Parameters: clipping_norm=0.8, value_range=(0.0, 1.5), T=2, b=3, gradient_noise=0.02108, value_noise=0.08385. Spent so far: mu = 0.5963 in 4 releases; the run cannot spend more than mu = 2. Not covered: training records: a model trained on secret data must be trained privately, and its cost declared as training_mu; cross-validation losses, where one record both trains and validates; objectives in which one record''s loss depends on another validation record (early stopping, threshold or temperature selection, target scaling, batch statistics); runs in which row i is not the same record in every trial and on every worker (a shuffled loader, a split drawn anew, dropped rows); names, ranges, choices and constants of the search space, which are stored as they are; run times, and whether a trial fails or is pruned; what the objective itself prints, logs or writes; other studies on the same records: their mu add up as squares. Note: the caller declared values given to trial.report public. Note: the caller declared values given to trial.set_user_attr public. Note: training records: 4 trainings declared 0.1-GDP each compose to 0.2-GDP for the training records, if the training is what was declared."');
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
INSERT INTO "trial_params" VALUES(1,1,'x',5.50797902574575504175e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(2,1,'rate',2.6079282886399607344e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.01, "high": 1.0, "log": true}}');
INSERT INTO "trial_params" VALUES(3,1,'width',5.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 5, "high": 5}}');
INSERT INTO "trial_params" VALUES(4,1,'penalty',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["low", "high"]}}');
INSERT INTO "trial_params" VALUES(5,2,'x',0.5,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(6,2,'rate',1.00000000000000019428e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.01, "high": 1.0, "log": true}}');
INSERT INTO "trial_params" VALUES(7,2,'width',5.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 5, "high": 5}}');
INSERT INTO "trial_params" VALUES(8,2,'penalty',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["low", "high"]}}');
INSERT INTO "trial_params" VALUES(9,3,'x',6.45898715686713420502e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(10,3,'rate',2.38413749769807281619e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.01, "high": 1.0, "log": true}}');
INSERT INTO "trial_params" VALUES(11,3,'width',5.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 5, "high": 5}}');
INSERT INTO "trial_params" VALUES(12,3,'penalty',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["low", "high"]}}');
INSERT INTO "trial_params" VALUES(13,4,'x',4.86375438904884271895e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(14,4,'rate',1.86663058926288538685e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.01, "high": 1.0, "log": true}}');
INSERT INTO "trial_params" VALUES(15,4,'width',5.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 5, "high": 5}}');
INSERT INTO "trial_params" VALUES(16,4,'penalty',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["low", "high"]}}');
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
INSERT INTO "trial_user_attributes" VALUES(1,1,'epochs','3');
INSERT INTO "trial_user_attributes" VALUES(2,1,'privbo:role','"start"');
INSERT INTO "trial_user_attributes" VALUES(3,2,'epochs','3');
INSERT INTO "trial_user_attributes" VALUES(4,2,'privbo:role','"start"');
INSERT INTO "trial_user_attributes" VALUES(5,3,'epochs','3');
INSERT INTO "trial_user_attributes" VALUES(6,3,'privbo:role','"step 0"');
INSERT INTO "trial_user_attributes" VALUES(7,4,'epochs','3');
INSERT INTO "trial_user_attributes" VALUES(8,4,'privbo:role','"step 0"');
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
INSERT INTO "trial_values" VALUES(1,1,0,1.42258777050417173359e-01,'FINITE');
INSERT INTO "trial_values" VALUES(2,2,0,4.70240388501855233194e-02,'FINITE');
INSERT INTO "trial_values" VALUES(3,3,0,1.94921032644739283812e-01,'FINITE');
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
INSERT INTO "trials" VALUES(1,0,1,'COMPLETE','2026-11-22 12:24:16.582350','2026-11-22 12:24:17.877914');
INSERT INTO "trials" VALUES(2,1,1,'COMPLETE','2026-11-22 12:24:17.893099','2026-11-22 12:24:18.265776');
INSERT INTO "trials" VALUES(3,2,1,'COMPLETE','2026-11-22 12:24:18.279538','2026-11-22 12:24:18.435893');
INSERT INTO "trials" VALUES(4,3,1,'RUNNING','2026-11-22 12:24:18.452861',NULL);
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
