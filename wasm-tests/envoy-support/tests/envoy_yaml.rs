//! `envoy/envoy.yaml` in a real Envoy: everything that the file promises and
//! that is Envoy's work rather than the filter's.

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tidegate_envoy_support::{
    Answer, Backend, Builder, Connection, Envoy, Request, TWO_INSTANCES_YAML, eventually, missing,
    trap_at, wasm_file,
};

type Outcome = Result<(), String>;

const CHAT: &str = "/v1/chat/completions";

/// The two pools; every replica says which pool it is of.
struct Pools {
    short: [Backend; 2],
    long: [Backend; 2],
}

impl Pools {
    fn start() -> Result<Self, String> {
        let short = || Backend::start(|request| answer("short", request));
        let long = || Backend::start(|request| answer("long", request));
        Ok(Self { short: [short()?, short()?], long: [long()?, long()?] })
    }

    fn builder(&self) -> Builder {
        let ([a, b], [c, d]) = (&self.short, &self.long);
        Envoy::builder().backends([a.port(), b.port()], [c.port(), d.port()])
    }

    fn envoy(&self) -> Result<Envoy, String> {
        self.builder().start()
    }
}

/// What a replica does is in the request's `x-answer`.
fn answer(pool: &str, request: &Request) -> Answer {
    match (request.header("x-answer"), pool) {
        (Some("overflow" | "overflow used"), "short") => Answer::json(400, "context length"),
        (Some("overflow used"), _) => {
            Answer::json(200, r#"{"usage":{"prompt_tokens":9000,"completion_tokens":16}}"#)
        }
        (Some("bad"), _) => Answer::json(400, "bad request"),
        (Some("echo"), _) => Answer::echo("websocket"),
        (Some("stream"), _) => {
            Answer::stream(&["data: x\n\n"; 20]).pause(Duration::from_millis(50))
        }
        _ => Answer::json(200, pool),
    }
}

/// A chat of about this many bytes.
fn chat(bytes: usize) -> Request {
    let text = "word ".repeat(bytes / 5);
    let body = format!(
        r#"{{"model":"m","max_tokens":16,"messages":[{{"role":"user","content":"{text}"}}]}}"#
    );
    Request::post(CHAT, body)
}

const LONG: usize = 100_000;

/// A short pool that takes everything, however long. The buffer is that of
/// `envoy.yaml`: at the default a chunked body of two reads is decided at the
/// first, and its length is not known then.
const ALL_SHORT: &str = r#"{"version": 1, "buffer_bytes": 16777216, "models": [{"match": "*", "pools": [
  {"name": "short", "cluster": "short", "max_model_len": 100000000},
  {"name": "long", "cluster": "long", "max_model_len": 200000000}]}]}"#;

fn text<'a>(line: &'a Value, key: &str) -> Option<&'a str> {
    line.get(key).and_then(Value::as_str)
}

#[test]
fn routes_both_ways_and_says_so() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let envoy = pools.envoy()?;
    for (size, pool) in [(10, "short"), (LONG, "long")] {
        let answer = chat(size).send(envoy.port())?;
        assert_eq!((answer.status, answer.text()), (200, pool.into()));
        assert_eq!(answer.header("x-tidegate-pool"), Some(pool));
        for header in ["x-tidegate-reason", "x-tidegate-estimate", "x-tidegate-fit"] {
            assert!(answer.header(header).is_some(), "{header} in {answer:?}");
        }
        assert_eq!(answer.header("x-envoy-attempt-count"), Some("1"));
    }
    let log = envoy.access_log_of(2)?;
    for (line, pool) in log.iter().zip(["short", "long"]) {
        assert_eq!(text(line, "pool"), Some(pool), "{line}");
        assert_eq!(text(line, "host_pool"), Some(pool), "{line}");
        assert_eq!(text(line, "cluster"), Some(pool), "{line}");
        assert_eq!(line.get("attempts"), Some(&Value::from(1)), "{line}");
        assert_eq!(line.get("status"), Some(&Value::from(200)), "{line}");
    }
    assert_eq!(envoy.counter("wasmcustom.tidegate.requests.short")?, 1);
    assert_eq!(envoy.counter("wasmcustom.tidegate.requests.long")?, 1);
    Ok(())
}

#[test]
fn stats_tags_become_labels() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let envoy =
        pools.builder().replace("stats_config:", "stats_flush_interval: 0.1s\nstats_config:");
    let envoy = envoy.start()?;
    chat(10).send(envoy.port())?;
    let page = envoy.prometheus()?;
    for line in [
        r#"tidegate_requests{pool="short"} 1"#,
        r#"tidegate_requests{pool="long"} 0"#,
        r#"tidegate_reason{reason="threshold"} 1"#,
        r#"tidegate_usage_missing{cause=""#,
    ] {
        assert!(page.contains(line), "no {line} in\n{page}");
    }
    eventually("the histogram's own buckets", || {
        let page = envoy.prometheus().ok()?;
        page.contains(r#"tidegate_estimate_error_bucket{le="300"}"#).then_some(())
    })?;

    let named = pools.builder().replace(r#""version": 1,"#, r#""version": 1, "name": "batch","#);
    let named = named.start()?;
    chat(10).send(named.port())?;
    let page = named.prometheus()?;
    for line in [
        r#"tidegate_requests{pool="short",instance="batch"} 1"#,
        r#"tidegate_reason{reason="threshold",instance="batch"} 1"#,
        r#"tidegate_under_route{instance="batch"} 0"#,
    ] {
        assert!(page.contains(line), "no {line} in\n{page}");
    }
    Ok(())
}

#[test]
fn http2_is_as_good() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let envoy = pools.envoy()?;
    let front = Envoy::http2_front(envoy.port())?;
    for (size, pool) in [(10, "short"), (LONG, "long"), (3_000_000, "long")] {
        let answer = chat(size).send(front.port())?;
        assert_eq!((answer.status, answer.text()), (200, pool.into()));
    }
    for line in envoy.access_log_of(3)? {
        assert_eq!(text(&line, "protocol"), Some("HTTP/2"));
    }
    Ok(())
}

#[test]
fn a_client_cannot_choose() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let envoy = pools.envoy()?;
    let spoofed = chat(10).with("x-tidegate-pool", "long").with("X-Tidegate-Other", "1");
    assert_eq!(spoofed.send(envoy.port())?.text(), "short");
    let seen: Vec<Request> = pools.short.iter().flat_map(Backend::requests).collect();
    let [seen] = seen.as_slice() else { return Err(format!("not one request: {seen:?}")) };
    let ours: Vec<_> = seen.headers.iter().filter(|(n, _)| n.starts_with("x-tidegate")).collect();
    assert_eq!(ours, [&("x-tidegate-pool".to_string(), "short".to_string())]);
    Ok(())
}

#[test]
fn without_the_filter_the_largest_pool_serves() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let switch = "typed_per_filter_config: { tidegate: { \"@type\": \
                  type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true } }";
    let envoy = pools.builder().edit(|t| t.insert_after("domains: [", switch)).start()?;
    let answer = chat(10).with("x-tidegate-pool", "short").send(envoy.port())?;
    assert_eq!((answer.status, answer.text()), (200, "long".into()));
    assert_eq!(answer.header("x-tidegate-pool"), None, "no header for an absent state");
    let log = envoy.access_log_of(1)?;
    assert_eq!(log.first().and_then(|line| text(line, "pool")), None, "{log:?}");
    Ok(())
}

/// Envoy with a filter that traps on a request with trailers.
fn trapping(pools: &Pools) -> Result<(Builder, impl FnMut(&Envoy) -> Outcome), String> {
    let wasm = wasm_file()?;
    let wasm = fs::read(&wasm).map_err(|e| format!("{}: {e}", wasm.display()))?;
    let builder = pools.builder().module(&trap_at(&wasm, "proxy_on_request_trailers")?).edit(|t| {
        t.insert_after("codec_type:", "http_protocol_options: { enable_trailers: true }")
    });
    let spring = |envoy: &Envoy| {
        let mut client = Connection::open(envoy.port())?;
        client.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
              transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-trailer: 1\r\n\r\n",
        )?;
        // Envoy resets or answers it; either way the VM is dead now.
        drop(client.response());
        eventually("the trap", || envoy.log().contains("unreachable").then_some(()))
    };
    Ok((builder, spring))
}

#[test]
fn fail_reload_recovers() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let (builder, mut trap) = trapping(&pools)?;
    let envoy = builder.start()?;
    assert_eq!(chat(10).send(envoy.port())?.text(), "short");
    trap(&envoy)?;
    eventually("the filter to come back", || {
        let answer = chat(10).send(envoy.port()).ok()?;
        assert!(
            [(200, "short"), (503, "")].contains(&(answer.status, answer.text().as_str())),
            "never past the filter, never to another pool: {answer:?}"
        );
        (answer.status == 200).then_some(())
    })?;
    assert_eq!(envoy.counter("wasm.tidegate.vm_reload_success")?, 1);
    Ok(())
}

/// The cost of a trap, whatever the policy: the worker's open streams.
#[test]
fn a_trap_ends_the_open_streams() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let (builder, mut trap) = trapping(&pools)?;
    let envoy = builder.start()?;
    let mut client = Connection::open(envoy.port())?;
    client.write(&chat(10).with("x-answer", "stream").bytes())?;
    let head = client.head()?;
    assert_eq!(head.status, 200);
    trap(&envoy)?;
    let cut = client.body(&head);
    assert!(cut.is_err(), "{cut:?}");
    for line in envoy.access_log_of(2)? {
        assert_eq!(text(&line, "details"), Some("wasm_fail_stream"), "{line}");
    }
    Ok(())
}

#[test]
fn fail_open_serves_from_the_largest_pool() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let (builder, mut trap) = trapping(&pools)?;
    let envoy = builder
        .replace("failure_policy: FAIL_RELOAD", "failure_policy: FAIL_OPEN")
        .edit(|t| t.remove_line("reload_config:"))
        .start()?;
    trap(&envoy)?;
    for _ in 0..3 {
        let answer = chat(10).with("x-tidegate-pool", "short").send(envoy.port())?;
        assert_eq!((answer.status, answer.text()), (200, "long".into()));
        assert_eq!(answer.header("x-tidegate-pool"), None);
    }
    Ok(())
}

#[test]
fn the_long_pool_answers_for_a_dead_short_one() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let envoy = pools.builder().health_interval("0.05s").start()?;
    assert_eq!(chat(10).send(envoy.port())?.text(), "short");
    let [a, b] = pools.short.each_ref().map(Backend::port);
    drop(pools.short);

    // From the first moment on: a refused connection goes to the next pool.
    for _ in 0..20 {
        let answer = chat(10).send(envoy.port())?;
        assert_eq!((answer.status, answer.text()), (200, "long".into()));
        assert_eq!(answer.header("x-tidegate-pool"), Some("short"), "the decision is the same");
    }
    // And once Envoy knows, without a second attempt.
    eventually("the death to be seen", || {
        let answer = chat(10).send(envoy.port()).ok()?;
        (answer.header("x-envoy-attempt-count") == Some("1")).then_some(())
    })?;
    let log = envoy.access_log_of(22)?;
    let last = log.last().ok_or("no line")?;
    assert_eq!((text(last, "pool"), text(last, "host_pool")), (Some("short"), Some("long")));
    // The answers state no usage: second attempts may have had another cause.
    let spilled = envoy.counter("wasmcustom.tidegate.spill.down")?
        + envoy.counter("wasmcustom.tidegate.spill.unclear")?;
    assert!(spilled >= 21, "{spilled}");

    let _revived = [
        Backend::start_on(a, |request| answer("short", request))?,
        Backend::start_on(b, |request| answer("short", request))?,
    ];
    eventually("the short pool to be back", || {
        let is_short = |_| chat(10).send(envoy.port()).is_ok_and(|answer| answer.text() == "short");
        (0..10).all(is_short).then_some(())
    })
}

#[test]
fn the_long_pool_answers_what_overflows_the_short_one() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let envoy = pools.builder().configuration(ALL_SHORT).start()?;
    let sizes = [10, LONG, 3_000_000, 15_000_000];
    let chunked = [10, LONG].map(|size| chat(size).with("transfer-encoding", "chunked"));
    for request in sizes.map(chat).into_iter().chain(chunked) {
        let answer = request.with("x-answer", "overflow").send(envoy.port())?;
        assert_eq!((answer.status, answer.text()), (200, "long".into()));
        assert_eq!(answer.header("x-tidegate-pool"), Some("short"));
        assert_eq!(answer.header("x-envoy-attempt-count"), Some("2"));
    }
    let bodies = pools.long.iter().flat_map(Backend::requests).map(|r| r.body.len());
    assert!(bodies.max() > Some(15_000_000), "the whole body goes up again");
    // Longer than the buffer: one attempt, and the client sees the 400.
    let answer = chat(18_000_000).with("x-answer", "overflow").send(envoy.port())?;
    assert_eq!((answer.status, answer.header("x-envoy-attempt-count")), (400, Some("1")));
    Ok(())
}

/// The answer comes from the long pool either way; only its usage tells whether
/// the short one was too small or something else was wrong with it.
#[test]
fn an_overflow_is_an_under_route_once_the_usage_proves_it() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let envoy = pools.envoy()?;
    let counts = || -> Result<Vec<u64>, String> {
        let names = ["under_route", "spill.unclear", "spill.down"];
        names.iter().map(|name| envoy.counter(&format!("wasmcustom.tidegate.{name}"))).collect()
    };
    assert_eq!(counts()?, [0, 0, 0]);
    let send = |kind| chat(10).with("x-answer", kind).send(envoy.port());
    assert_eq!(send("overflow used")?.header("x-envoy-attempt-count"), Some("2"));
    assert_eq!(counts()?, [1, 0, 0]);
    assert_eq!(send("overflow")?.header("x-envoy-attempt-count"), Some("2"));
    assert_eq!(counts()?, [1, 1, 0]);
    Ok(())
}

#[test]
fn a_bad_request_costs_one_more_attempt_at_most() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let envoy = pools.envoy()?;
    for (size, attempts) in [(10, "2"), (LONG, "1")] {
        let answer = chat(size).with("x-answer", "bad").send(envoy.port())?;
        assert_eq!((answer.status, answer.text()), (400, "bad request".into()));
        assert_eq!(answer.header("x-envoy-attempt-count"), Some(attempts), "{size} bytes");
    }
    Ok(())
}

/// Envoy allows 3 retries at a time unless told otherwise. The long pool is
/// slow, so that all second attempts are there at once.
fn overflow_at_the_same_time(clients: usize, retries: &str) -> Result<usize, String> {
    let start = |pool: &'static str| {
        Backend::start(move |_| match pool {
            "short" => Answer::json(400, "context length"),
            _ => Answer::json(200, pool).pause(Duration::from_secs(1)),
        })
    };
    let (short, long) = (start("short")?, start("long")?);
    let envoy = Envoy::builder()
        .backends([short.port(); 2], [long.port(); 2])
        .replace("max_retries: 256 ", &format!("max_retries: {retries} "))
        .start()?;
    let port = envoy.port();
    let clients: Vec<_> =
        (0..clients).map(|_| thread::spawn(move || chat(10).send(port))).collect();
    let mut answered = 0;
    for client in clients {
        let answer = client.join().map_err(|_| "a client panicked")??;
        assert!([200, 400].contains(&answer.status));
        answered += usize::from(answer.status == 200);
    }
    assert_eq!(envoy.counter("cluster.short.upstream_rq_retry")?, answered as u64);
    Ok(answered)
}

#[test]
fn a_storm_of_overflows_reaches_the_long_pool_up_to_a_limit() -> Outcome {
    if missing() {
        return Ok(());
    }
    assert_eq!(overflow_at_the_same_time(20, "256")?, 20);
    assert_eq!(overflow_at_the_same_time(30, "10")?, 10, "the others get the 400");
    Ok(())
}

/// Three megabytes come in reads of up to one, after a beginning that waits in
/// the buffer.
#[test]
fn nothing_is_too_large() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let envoy = pools.envoy()?;
    for framing in ["x-none", "transfer-encoding"] {
        let bytes = chat(3_000_000).with(framing, "chunked").bytes();
        for beginning in [20_000, 400_000] {
            for _ in 0..5 {
                let (first, rest) = bytes.split_at(beginning);
                let mut client = Connection::open(envoy.port())?;
                client.write(first)?;
                thread::sleep(Duration::from_millis(20));
                client.write(rest)?;
                assert_eq!(client.response()?.status, 200, "{framing}, {beginning} bytes first");
            }
        }
    }
    assert_eq!(envoy.counter("http.tidegate.downstream_rq_too_large")?, 0);
    Ok(())
}

#[test]
fn an_upgrade_passes() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let envoy = pools.envoy()?;
    let mut client = Connection::open(envoy.port())?;
    let hello = Request::get("/v1/realtime")
        .with("connection", "upgrade")
        .with("upgrade", "websocket")
        .with("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .with("x-answer", "echo");
    client.write(&hello.bytes())?;
    assert_eq!(client.response()?.status, 101);
    client.write(b"hello")?;
    assert_eq!(client.read(5)?, b"hello");
    Ok(())
}

#[test]
fn two_instances_switch_by_route() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let ([short, _], [long, _]) = (&pools.short, &pools.long);
    let (short, long) = (short.port(), long.port());
    let envoy = Envoy::builder()
        .template(TWO_INSTANCES_YAML)
        .edit(|t| t.port(18001, short))
        .edit(|t| t.port(18101, long));
    envoy.validate()?;
    let envoy = envoy.start()?;
    let count = |name: &str| envoy.counter(&format!("wasmcustom.tidegate.requests.{name}"));
    assert_eq!(chat(10).send(envoy.port())?.status, 200);
    assert_eq!(count("short")?, 1);
    let before = count("short.instance.batch")? + count("long.instance.batch")?;
    assert_eq!(before, 0);
    let batch = Request { path: format!("/batch{CHAT}"), ..chat(10) };
    assert_eq!(batch.send(envoy.port())?.status, 200);
    assert_eq!(count("short")? + count("long")?, 1, "the first filter did not see it");
    assert_eq!(count("short.instance.batch")? + count("long.instance.batch")?, 1);
    Ok(())
}

#[test]
fn both_workers_serve() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let envoy = pools.builder().workers(2).exact_balance().start()?;
    // Envoy evens out the connections that are open.
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = Connection::open(envoy.port())?;
        client.write(&chat(10).bytes())?;
        assert_eq!(client.response()?.text(), "short");
        clients.push(client);
    }
    assert_eq!(envoy.worker_connections()?, [2, 2]);
    Ok(())
}

#[test]
fn a_bad_configuration_is_refused_with_a_reason() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    pools.builder().validate()?;
    let zero = ALL_SHORT.replace("100000000}", "0}");
    for (configuration, why) in [
        (zero.as_str(), "models[0].pools[0].max_model_len: 0: must be an integer from 1 to"),
        ("{nonsense", "wasm log tidegate"),
    ] {
        let refused = pools.builder().configuration(configuration).validate();
        let reason = refused.err().ok_or_else(|| format!("{configuration} was accepted"))?;
        assert!(reason.contains(why), "no {why} in {reason}");
    }
    Ok(())
}

#[test]
fn envoy_ends_with_the_test() -> Outcome {
    if missing() {
        return Ok(());
    }
    let pools = Pools::start()?;
    let envoy = pools.envoy()?;
    let proc = format!("/proc/{}", envoy.pid());
    assert!(fs::metadata(&proc).is_ok());
    let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _envoy = envoy;
        assert_eq!(1, 2, "as a failed test does");
    }));
    assert!(end.is_err());
    assert!(fs::metadata(&proc).is_err(), "still there");
    Ok(())
}
