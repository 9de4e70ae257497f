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
CREATE TABLE privbo_releases (
	run_id VARCHAR(32) NOT NULL, 
	seq INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	"key" VARCHAR(160) NOT NULL, 
	payload TEXT NOT NULL, 
	PRIMARY KEY (run_id, seq), 
	UNIQUE (run_id, kind, "key")
);
INSERT INTO "privbo_releases" VALUES('8917d4ba74c9ae4f2443d3d848fdd6da',1,'table','0','{"mechanism": "gaussian", "n": 24, "d": 2, "r": 2, "epsilon": 4.0, "delta": 1e-06, "mu": 0.8378587562521387, "neighbor_distance": 0.3, "norm_bound": 0.7071067811865476, "on_excess": "clip", "sensitivity": 0.3000000003, "noise_sd": 0.35805591833191447, "projection": {"kind": "identity"}, "scaling": {"columns": ["age", "bmi"], "low": [18.0, 10.0], "high": [98.0, 60.0]}, "noise": "the operating system''s entropy (OpenDP)", "protected": true, "reasons": [], "outcomes": null, "ledger": {"vault": "4708e6ad885248798e662d7224aa4524", "run": "clinic", "store": "database"}, "digest": "a63e1722cc5c0a5e3166639975333389b1c496b788380b79ba44524089a4dc42"}');
INSERT INTO "privbo_releases" VALUES('8917d4ba74c9ae4f2443d3d848fdd6da',14,'answer','12','{"y": 0.970818466978635}');
INSERT INTO "privbo_releases" VALUES('8917d4ba74c9ae4f2443d3d848fdd6da',18,'answer','16','{"y": 0.8533639655536644}');
INSERT INTO "privbo_releases" VALUES('8917d4ba74c9ae4f2443d3d848fdd6da',8,'answer','6','{"y": 0.7849475522251421}');
INSERT INTO "privbo_releases" VALUES('8917d4ba74c9ae4f2443d3d848fdd6da',6,'answer','4','{"y": 0.39875771072716804}');
CREATE TABLE privbo_runs (
	run_id VARCHAR(32) NOT NULL, 
	host_key VARCHAR(512) NOT NULL, 
	settings TEXT NOT NULL, 
	frozen TEXT, 
	PRIMARY KEY (run_id), 
	UNIQUE (host_key)
);
INSERT INTO "privbo_runs" VALUES('8917d4ba74c9ae4f2443d3d848fdd6da','outsourced:clinic','{"mechanism": "gaussian", "n": 24, "d": 2, "r": 2, "epsilon": 4.0, "delta": 1e-06, "neighbor_distance": 0.3, "norm_bound": 0.7071067811865476, "on_excess": "clip", "scaling": {"columns": ["age", "bmi"], "low": [18.0, 10.0], "high": [98.0, 60.0]}, "projection_seed": 0, "outcomes": null}',NULL);
CREATE TABLE privbo_tables (
	run_id VARCHAR(32) NOT NULL, 
	table_name VARCHAR(16) NOT NULL, 
	block INTEGER NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (run_id, table_name, block)
);
INSERT INTO "privbo_tables" VALUES('8917d4ba74c9ae4f2443d3d848fdd6da','table',0,X'F21547B6D46ADE3FD9F75D34289CE73FD54C088B30EBE0BFE8B5478921AFE7BFF08613E41E41F2BFAE3DE525BB01D4BF15E58B4DD598C0BF30B80AFCC106ABBF186C5093CCEDE9BFD3BC51AFF249E43F6B6967F9E2D2E23F2E9F73D76C1BD0BFE689BE724581943F784A73671C9BF43F0006FE86CF0ACF3FD07848B945D2E03F59A33E9AD9CEA0BFFD5BC5FA945EE23F44057A80F446D73F83E4FD689EE8E4BF2457F84FD8A8D93F2E05BDF19D92CCBF13E362F637AAF43F221026DE4E30CFBFFDE977888F1CD5BF698EB1A1A780E43F5BF706433181DFBF377E87035421D83F6403CBBCD63BDB3F9E67E8B15D11C5BF53480A655A80EE3F15D07EF56A8FE4BF6FF2C87BF92FD2BF88AE2C4C6897BABF4004F1BC1AECE1BF2D1DA93EFA70C9BF6C7A2C4924B8A53FD77ECA0CDA2AE0BFE6297A4E9607D4BFEA88B8010C2DD43FCA93F9C78497DA3FCE7E768B7801DF3FAE495E9F66B8B9BFA8A3BA707739B1BF4D0195014787D83FCB0D019FCA6EB23FD1064A5B3D3C99BF41B1FA94B568B2BF');
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
INSERT INTO "privbo_vault" VALUES(1,'4708e6ad885248798e662d7224aa4524');
CREATE INDEX privbo_trials_step ON privbo_trials (run_id, step);
CREATE INDEX privbo_plays_person ON privbo_plays (person);
COMMIT;
