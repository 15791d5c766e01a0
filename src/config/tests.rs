use super::*;
use crate::estimate::Settings as EstimatorSettings;
use crate::pool::{LoadSources, Scrape};
use crate::request::{Api, Media};
use crate::time::Span;

const TWO_POOLS: &str = r#"{"version": 1, "models": [{"match": "*", "pools": [
    {"name": "long", "cluster": "l", "max_model_len": 65536},
    {"name": "short", "cluster": "s", "max_model_len": 8192, "threshold": 6000}]}]}"#;

/// The document with one edit.
fn edited(from: &str, to: &str) -> Result<Config, ConfigError> {
    assert!(TWO_POOLS.contains(from), "{from}");
    Config::parse(TWO_POOLS.replacen(from, to, 1).as_bytes())
}

fn with(field: &str) -> Result<Config, ConfigError> {
    edited(r#""version": 1"#, &format!(r#""version": 1, {field}"#))
}

#[test]
fn defaults_are_as_documented() {
    let config = Config::parse(TWO_POOLS.as_bytes()).unwrap();
    let base = config.base();
    assert_eq!(
        (config.name.as_str(), config.pool_header.as_str()),
        ("tidegate", "x-tidegate-pool")
    );
    assert_eq!(config.pool_names, ["long", "short"]);
    assert_eq!(base.default_pool.name, "long");
    assert_eq!(base.output_reserve, OutputReserve::Tokens(1024));
    assert_eq!(
        (base.inspect, base.inspect_bytes_max, base.dry_run),
        (Inspect::Body, 524_288, false)
    );
    let pools = &base.models[0].pools;
    assert_eq!((pools[0].name.as_str(), pools[0].threshold), ("short", 6000), "smallest first");
    assert_eq!(pools[1].threshold, 65536);
    assert_eq!(base.estimator, EstimatorSettings::default());
    assert_eq!((base.api, base.tenant_class), (None, TenantClass::Elastic));
    assert_eq!(config.usage_sources, [UsageSource::Headers, UsageSource::Body]);
    assert!(!config.narrow_accept_encoding);
    assert!(pools.iter().all(|pool| pool.stream_usage == StreamUsage::Off));
}

#[test]
fn every_setting_can_be_set_for_a_route() {
    let config = with(
        r#""output_reserve": "learned", "media_tokens": {"image": 7}, "overrides": [
            {"host": "h", "set": {"api": "messages", "tenant_class": "spot",
             "media_tokens": {"audio": 5}, "estimator": {"margin": 2}}}]"#,
    )
    .unwrap();
    let set = config.settings(b"", b"h", None);
    assert_eq!((set.api, set.tenant_class), (Some(Api::Messages), TenantClass::Spot));
    assert_eq!((set.output_reserve, set.estimator.margin), (OutputReserve::Learned, 2.0));
    let media = Media { images: 2, audio: 3, videos: 0, files: 0 };
    assert_eq!(set.media_tokens.of(media), 2 * 1024 + 3 * 5);
    assert_eq!(config.base().media_tokens.of(media), 2 * 7 + 3 * 1024);
}

#[test]
fn where_engines_say_how_busy_they_are() {
    let with = |load: &str| {
        let more = format!(r#""max_model_len": 8192, "load": {load}"#);
        edited(r#""max_model_len": 8192"#, &more)
    };
    let capacity = r#", "capacity": {"replicas": 3, "requests": 8}"#;
    let load = |load: &str| {
        let config = with(&format!("{load}{capacity}"))?;
        Ok(config.capacities.first().and_then(|one| one.load.clone()).unwrap())
    };
    let scrape = Scrape {
        cluster: "c".to_owned(),
        path: "/metrics".to_owned(),
        interval: Span::from_secs(1),
        whole_pool: false,
    };
    let told = LoadSources { replicas: 3, scrape: Some(scrape.clone()), orca: false };
    assert_eq!(load(r#"{"metrics": {"cluster": "c"}}"#), Ok(told.clone()));
    assert_eq!(
        load(r#"{"orca": true}"#),
        Ok(LoadSources { scrape: None, orca: true, ..told.clone() })
    );
    let interval = Span::from_millis(100);
    let scrape = Scrape { path: "/federate?a=b".to_owned(), interval, whole_pool: true, ..scrape };
    assert_eq!(
        load(
            r#"{"orca": true, "metrics": {"cluster": "c", "path": "/federate?a=b",
                "interval_ms": 100, "covers": "pool"}}"#
        ),
        Ok(LoadSources { scrape: Some(scrape), orca: true, ..told })
    );
    let metrics = |more: &str| load(&format!(r#"{{"metrics": {{"cluster": "c", {more}}}}}"#));
    for (result, expected) in [
        (load("{}"), "pools[1].load: {}: must have metrics, or orca that is true"),
        (load(r#"{"orca": false}"#), "must have metrics, or orca that is true"),
        (load(r#"{"orca": 1}"#), "load.orca: 1: must be true or false"),
        (load(r#"{"metric": {}}"#), "load.metric: (unknown): is not a known field, did you mean"),
        (load(r#"{"metrics": {}}"#), "load.metrics.cluster: (absent): is required: an Envoy cl"),
        (metrics(r#""path": "metrics""#), r#"load.metrics.path: "metrics": must begin with /"#),
        (metrics(r#""path": "/a b""#), "load.metrics.path: \"/a b\": must be visible ASCII"),
        (metrics(r#""interval_ms": 99"#), "interval_ms: 99: must be an integer from 100 to 60000"),
        (metrics(r#""covers": "all""#), r#"covers: "all": must be "replica" or "pool""#),
        (
            with(r#"{"orca": true}"#).map(|_| unreachable!()),
            "load: {\"orca\":true}: needs capacity.tokens_in_flight or capacity.requests",
        ),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn errors_name_field_value_and_what_is_allowed() {
    let error = |result: Result<Config, ConfigError>| result.unwrap_err().to_string();
    let cases = [
        (
            edited("6000", "9000"),
            "models[0].pools[1].threshold: 9000: must be an integer from 1 to 8192 (the pool's max_model_len)",
        ),
        (
            edited("\"threshold\"", "\"treshold\""),
            "models[0].pools[1].treshold: (unknown): is not a known field, did you mean \"threshold\"?",
        ),
        (
            edited("\"version\": 1", "\"version\": \"1\""),
            "version: \"1\": must be an integer from 1",
        ),
        (edited("\"version\": 1, ", ""), "version: (absent): is required: the number 1"),
        (edited("65536", "8192"), "models[0].pools[1]: {"),
        (edited("\"short\"", "\"Short\""), "models[0].pools[1].name: \"Short\": must be 1 to 64"),
        (edited("\"short\"", "\"long\""), "must differ from the model's other pools"),
        (with(r#""inspect": "all""#), "inspect: \"all\": must be \"body\" or \"headers\""),
        (with(r#""default_pool": "mid""#), "default_pool: \"mid\": must be one of the pools: "),
        (
            with(r#""output_reserve": "short""#),
            "must be an integer from 1 to 4294967295, or \"longest\" or \"learned\"",
        ),
        (with(r#""api": "grpc""#), "api: \"grpc\": must be \"chat\" or \"completions\" or"),
        (with(r#""tenant_class": "gold""#), "must be \"guaranteed\" or \"elastic\" or \"spot\""),
        (
            with(r#""media_tokens": {"image": -1}"#),
            "media_tokens.image: -1: must be an integer from 0 to 16777216",
        ),
        (with(r#""media_tokens": {"img": 1}"#), "did you mean \"image\"?"),
        (with(r#""usage_sources": []"#), "usage_sources: []: must name at least one source"),
        (
            with(r#""usage_sources": ["body", "body"]"#),
            "usage_sources[1]: \"body\": must be named once",
        ),
        (with(r#""accept_encoding": "gzip""#), "must be \"keep\" or \"narrow\""),
        (
            edited(r#""max_model_len": 65536"#, r#""max_model_len": 65536, "stream_usage": true"#),
            "stream_usage: true: must be \"off\" or \"add\" or \"add_and_hide\"",
        ),
        (
            with(r#""overrides": [{"host": "h", "set": {"estimator": {"export_seconds": 9}}}]"#),
            "overrides[0].set.estimator.export_seconds: (not shown): must stand in the estimator of",
        ),
        (with(r#""overrides": [{"host": "h", "set": {"tenant": "x"}}]"#), "tenant: \"x\": must be"),
        (
            with(r#""overrides": [{"host": "h", "set": {"usage_headers": {}}}]"#),
            "overrides[0].set.usage_headers: (unknown): is not a known field",
        ),
        (
            with(r#""inspect_bytes_max": 2097152"#),
            "inspect_bytes_max: 2097152: must be at most buffer_bytes (1048576)",
        ),
        (with(r#""pool_header": "X-Pool""#), "must be a header name in lower case"),
        (
            with(r#""estimator": {"decay": 1}"#),
            "estimator.decay: 1: must be a number from 0 to 0.9999",
        ),
        (with(r#""estimator": {"start_ratio": 0.5}"#), "must be a number from 0.8 to 16"),
        (
            with(r#""overrides": [{"set": {}}]"#),
            "overrides[0]: {\"set\":{}}: must name a path_prefix",
        ),
        (
            with(r#""overrides": [{"host": "h", "set": {"dry_run": 1}}]"#),
            "overrides[0].set.dry_run: 1: must be true or false",
        ),
        (
            edited(r#""max_model_len": 65536"#, r#""max_model_len": 65536, "threshold": 9000"#),
            "must not have a threshold: the largest pool takes all the rest",
        ),
        (
            edited(r#""match": "*""#, r#""match": "m""#).and_then(|_| {
                edited(
                    r#"1, "models": [{"match": "*""#,
                    r#"1, "inspect": "headers", "models": [{"match": "m""#,
                )
            }),
            "inspect: \"headers\": needs a model that matches \"*\"",
        ),
        (
            with(r#""overrides": [{"host": "h:80", "set": {}}]"#),
            "overrides[0].host: \"h:80\": must be a host without a port",
        ),
        (
            with(
                r#""overrides": [{"host": "h", "set": {"models": [{"match": "*", "pools": [
                    {"name": "short", "cluster": "other", "max_model_len": 9}]}]}}]"#,
            ),
            "pool \"short\": \"other\": already stands for the cluster \"s\" elsewhere",
        ),
        (Config::parse(b"{"), "configuration: EOF while parsing"),
        (Config::parse(b""), "configuration: (empty): must be a JSON document"),
        (Config::parse(b"[]"), "configuration: []: must be an object"),
    ];
    for (result, expected) in cases {
        let message = error(result);
        assert!(message.contains(expected), "{message}\n  lacks: {expected}");
    }
}

#[test]
fn a_protobuf_struct_gets_a_hint() {
    // {"version": 1} as google.protobuf.Struct.
    let bytes = b"\x0a\x14\x0a\x07version\x12\x09\x11\0\0\0\0\0\0\xf0?";
    let message = Config::parse(bytes).unwrap_err().to_string();
    assert!(message.contains("StringValue"), "{message}");
    // White space before JSON, or before bad JSON, is no Struct.
    let typo = Config::parse(b"\n\n\n{\"version\": 1,}").unwrap_err().to_string();
    assert!(!typo.contains("StringValue"), "{typo}");
    assert!(Config::parse(("\n\n\n".to_owned() + TWO_POOLS).as_bytes()).is_ok());
}

#[test]
fn a_newer_document_may_have_fields_we_do_not_know() {
    let extra = r#""version": 2, "planets": [], "key": "secret""#;
    let nested = edited(r#""version": 1"#, extra).map(|config| config.warnings);
    let warnings: Vec<String> = nested.unwrap().into_iter().map(|warning| warning.0).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings.iter().all(|warning| !warning.contains("secret")), "{warnings:?}");
    let document = TWO_POOLS.replace(r#""version": 1"#, extra);
    let deep = document.replace(r#""threshold""#, r#""weight": 3, "threshold""#);
    assert_eq!(Config::parse(deep.as_bytes()).unwrap().warnings.len(), 3);
    assert!(Config::parse(deep.replace("2, \"planets", "1, \"planets").as_bytes()).is_err());
}

#[test]
fn floats_without_fraction_are_integers() {
    let config = edited("8192,", "8192.0,").unwrap();
    assert_eq!(config.base().models[0].pools[0].max_model_len, 8192);
}

#[test]
fn the_nearest_model_matches() {
    let pools =
        |name: &str| format!(r#"[{{"name":"{name}","cluster":"c-{name}","max_model_len":9}}]"#);
    let document = format!(
        r#"{{"version":1,"models":[{{"match":"*","pools":{}}},{{"match":"llama-*","pools":{}}},
           {{"match":"llama-3-*","pools":{}}},{{"match":"llama-3-8b","pools":{}}}]}}"#,
        pools("any"),
        pools("llama"),
        pools("three"),
        pools("exact"),
    );
    let config = Config::parse(document.as_bytes()).unwrap();
    let pool = |name: Option<&str>| {
        config.base().model(name.map(str::as_bytes)).unwrap().pools[0].name.clone()
    };
    assert_eq!(pool(Some("llama-3-8b")), "exact");
    assert_eq!(pool(Some("llama-3-70b")), "three");
    assert_eq!(pool(Some("llama-2")), "llama");
    assert_eq!(pool(Some("qwen")), "any");
    assert_eq!(pool(None), "any");
}

#[test]
fn the_first_override_that_holds_applies() {
    let config = with(
        r#""overrides": [
            {"path_prefix": "/batch", "host": "a.example", "set": {"output_reserve": "longest"}},
            {"host": "a.example", "set": {"inspect": "headers"}},
            {"route_name": "r", "set": {"default_pool": "short"}}]"#,
    )
    .unwrap();
    let settings = |path: &str, host: &str, route: Option<&str>| {
        config.settings(path.as_bytes(), host.as_bytes(), route.map(str::as_bytes))
    };
    assert_eq!(
        settings("/batch/v1", "A.example:8080", None).output_reserve,
        OutputReserve::Longest
    );
    assert_eq!(settings("/v1", "a.example", None).inspect, Inspect::Headers);
    assert_eq!(settings("/v1", "b", Some("r")).default_pool.name, "short");
    assert!(Arc::ptr_eq(settings("/v1", "b", None), config.base()));
    assert!(config.wants_route_name());
}
