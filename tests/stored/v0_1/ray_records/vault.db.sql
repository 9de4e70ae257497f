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
INSERT INTO "privbo_ledger" VALUES('28d04f7b32e341baa288deb60f7c18ab','value','ef108340',3.38061701891406662934e-01,1.66666666666666664353e-02,4.9300711875941316542e-02,'validation');
INSERT INTO "privbo_ledger" VALUES('28d04f7b32e341baa288deb60f7c18ab','value','3ecd3c2d',3.38061701891406662934e-01,1.66666666666666664353e-02,4.9300711875941316542e-02,'validation');
INSERT INTO "privbo_ledger" VALUES('28d04f7b32e341baa288deb60f7c18ab','value','92d3a81a',3.38061701891406662934e-01,1.66666666666666664353e-02,4.9300711875941316542e-02,'validation');
CREATE TABLE privbo_losses (
	run_id VARCHAR(32) NOT NULL, 
	trial VARCHAR(128) NOT NULL, 
	block INTEGER NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (run_id, trial, block)
);
INSERT INTO "privbo_losses" VALUES('28d04f7b32e341baa288deb60f7c18ab','92d3a81a',0,X'901226B99E6B7F3F9D2AF39D1D12B33FB5DC1A07C2E1BA3F1BB8FDCD8037573F1B4D5CC5B95F833FD9A0D9177968CE3F29A298C2480B6C3F760A2AE68CDA7F3F6C2B00E416ADCF3F276435F27B99BC3F33969B2E901BA63F0A90FC372CEDB33F810E34CE161BC03F5F498B8A1C879A3F49CAA52CEE70813F69ED0F9BB64AC63FF4713DE1EE72C03F9E26340355FFB33F9840E65EE1D9C73FF129A6E47BB5B63F4098C0367AE4D03F9D18B7766024903F2A2E70B0B310B73F922AC94423FEB13FC62FA89D8D77A43F8A2328250E11BA3F0B38E00AF857943FAD08465B080EC73F3E64CBD48ABACA3F897F78AB077D7F3F9020290E0EE3B03F35355850CDD49A3F0FCC3239D83A713FFCD41E57A96DCC3F0A2D8C588311AD3FA6ADAEABC253833FC4A3C8894496C03F16E8858179B28F3F1EE7CD60A3C2CC3F1914D219D4CE913F852D98FC1E005A3F2100A50D5D548F3F60A73B3028B4A33FF9C40AFCFE01B13F0DBF5873DF0BCD3F8443D12412B6C13F09E289BE3F10A33F3ABCDF79D980503FE36E0C87FAD0853FB388FEEC1E68D13F90DD56E21A68B03F687A55685969C13F0142C5E47F00653FB4ABB37E20A45A3F81B39CD2377DC93F53F8FB48A0C3B93F1C96614DC128A03FDB3B427407F5A03F62A6A11FE4E4723F39947399BA9D883F');
CREATE TABLE privbo_marks (
	run_id VARCHAR(32) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	text VARCHAR(512) NOT NULL, 
	PRIMARY KEY (run_id, kind, text)
);
INSERT INTO "privbo_marks" VALUES('28d04f7b32e341baa288deb60f7c18ab','note','whoever can run code on the cluster, or read the vault''s database, can read the raw losses that the vault holds');
INSERT INTO "privbo_marks" VALUES('28d04f7b32e341baa288deb60f7c18ab','entered','ef108340');
INSERT INTO "privbo_marks" VALUES('28d04f7b32e341baa288deb60f7c18ab','entered','3ecd3c2d');
INSERT INTO "privbo_marks" VALUES('28d04f7b32e341baa288deb60f7c18ab','entered','92d3a81a');
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
INSERT INTO "privbo_releases" VALUES('28d04f7b32e341baa288deb60f7c18ab',1,'value','ef108340','{"values": [0.050671359200045826], "meta": {"role": "start", "step": -1, "reserve": false, "x": [0.5]}}');
INSERT INTO "privbo_releases" VALUES('28d04f7b32e341baa288deb60f7c18ab',2,'value','3ecd3c2d','{"values": [0.06422067499573432], "meta": {"role": "start", "step": -1, "reserve": false, "x": [0.8770216107368469]}}');
INSERT INTO "privbo_releases" VALUES('28d04f7b32e341baa288deb60f7c18ab',3,'value','92d3a81a','{"values": [0.10008467289435839], "meta": {"role": "step", "step": 0, "reserve": false}}');
CREATE TABLE privbo_runs (
	run_id VARCHAR(32) NOT NULL, 
	host_key VARCHAR(512) NOT NULL, 
	settings TEXT NOT NULL, 
	frozen TEXT, 
	PRIMARY KEY (run_id), 
	UNIQUE (host_key)
);
INSERT INTO "privbo_runs" VALUES('28d04f7b32e341baa288deb60f7c18ab','ray/clinic','{"algorithm": "dp-gibo", "config": {"mu": 2.0, "n_steps": 2, "n_trials": null, "batch_size": null, "tolerance": null, "n_starts": 2, "extra_values": 0, "clipping_norm": 1.0, "loss_bound": 1.0, "value_share": 0.2, "norm_share": 0.05, "kernel": "rbf", "lengthscale": 0.25, "noise_ratio": 0.01, "step_rule": "momentum", "step_size": null, "memory": 0, "centring": true, "exact_centre": false, "random_start": false, "average": 0.0, "training_mu": null}, "maximize": false, "seed": 3}','{"space": {"x": {"type": "float", "low": 0.0, "high": 1.0, "log": false, "step": null}}, "mode": "private", "n_records": 60}');
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
INSERT INTO "privbo_trials" VALUES('28d04f7b32e341baa288deb60f7c18ab','ef108340','start',-1,0,X'000000000000E03F','done',5.06713592000458262765e-02);
INSERT INTO "privbo_trials" VALUES('28d04f7b32e341baa288deb60f7c18ab','3ecd3c2d','start',-1,1,X'000000A08F10EC3F','done',6.4220674995734319812e-02);
INSERT INTO "privbo_trials" VALUES('28d04f7b32e341baa288deb60f7c18ab','92d3a81a','step',0,0,X'F5EB5D0EDE1BD83F','done',1.00084672894358392425e-01);
CREATE TABLE privbo_vault (
	one INTEGER NOT NULL, 
	vault_id VARCHAR(32) NOT NULL, 
	PRIMARY KEY (one)
);
INSERT INTO "privbo_vault" VALUES(1,'d5c64f33ca034d92a3fd7177e8b2f349');
CREATE INDEX privbo_trials_step ON privbo_trials (run_id, step);
CREATE INDEX privbo_plays_person ON privbo_plays (person);
COMMIT;
