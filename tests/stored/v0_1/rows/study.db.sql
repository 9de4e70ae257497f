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
INSERT INTO "study_user_attributes" VALUES(1,1,'privbo:guarantee','"The released table and the one answer to a row are (epsilon = 8.00, delta = 1e-06)-differentially private. Protected: each row of the curator''s table, against the modeler and whoever sees the released table and the answers (n = 24). Neighbouring relation: two tables of the same size that differ in one row, by at most 0.2999 in Euclidean norm over all columns together, in the scaled units of the release; the row''s own outcome may differ in any way. Mechanism: rows scaled and clipped by public bounds, mixed by a public matrix, Gaussian noise on every one (OpenDP, up to its grid). Parameters: sensitivity=0.3, noise_sd=0.3581, norm_bound=0.7071, on_excess=clip, projection=identity. Answers told so far: 3, each randomised once: clipped to the public range and randomised (mechanism=laplace, epsilon=4.0, delta=0.0, low=0.0, high=1.0). Not covered: the curator, who holds the rows and is trusted; the number of rows, their order, and that a person is one of them; column names, and the public bounds that rows were scaled and clipped to; which rows are asked for, whether a row has an outcome yet, and when answers come; rows of the same person: a person with k rows is protected k times less; outcomes that depend on other people''s rows; what a process that holds the rows reports of them beside the table and answers (attributes, logs); a vault that was copied, or set back from a backup, before the release: it would release the table anew; what the curator releases elsewhere of the same people, other tables of the same rows included: the losses add up; changes of a row beyond that distance: a column with few values (a sex, a diagnosis) can then be read off the table, and so can that an entry is missing, if the middle of its bounds lies further away. Note: that answers in this study were randomised by the curator as stated is not checked here."');
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
INSERT INTO "trial_params" VALUES(1,1,'row',12.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 23}}');
INSERT INTO "trial_params" VALUES(2,2,'row',16.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 23}}');
INSERT INTO "trial_params" VALUES(3,3,'row',14.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 23}}');
INSERT INTO "trial_params" VALUES(4,4,'row',18.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 23}}');
CREATE TABLE trial_system_attributes (
	trial_system_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_system_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_system_attributes" VALUES(1,1,'privbo:row','12');
INSERT INTO "trial_system_attributes" VALUES(2,2,'privbo:row','16');
INSERT INTO "trial_system_attributes" VALUES(3,3,'privbo:row','14');
INSERT INTO "trial_system_attributes" VALUES(4,4,'privbo:row','18');
CREATE TABLE trial_user_attributes (
	trial_user_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_user_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
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
INSERT INTO "trial_values" VALUES(1,1,0,1.24411865045119984785e+00,'FINITE');
INSERT INTO "trial_values" VALUES(2,2,0,4.53454175332783759877e-01,'FINITE');
INSERT INTO "trial_values" VALUES(3,3,0,3.74893619219352380866e-01,'FINITE');
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
INSERT INTO "trials" VALUES(1,0,1,'COMPLETE','2026-11-22 11:49:26.526736','2026-11-22 11:49:27.756270');
INSERT INTO "trials" VALUES(2,1,1,'COMPLETE','2026-11-22 11:49:27.777174','2026-11-22 11:49:27.865572');
INSERT INTO "trials" VALUES(3,2,1,'COMPLETE','2026-11-22 11:49:27.896316','2026-11-22 11:49:28.000087');
INSERT INTO "trials" VALUES(4,3,1,'RUNNING','2026-11-22 11:49:28.008014',NULL);
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
