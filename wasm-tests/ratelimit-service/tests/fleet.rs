//! `envoy/ratelimit/` for real: two Envoys with the shipped filter, one Rate
//! Limit Service, one Redis.

use serde_json::json;
use std::thread;
use std::time::Duration;
use tidegate_envoy_support::{
    Answer, Backend, Builder, Connection, Envoy, RATELIMIT_YAML, Redis, Request, eventually,
    missing, redis_missing,
};
use tidegate_ratelimit_service::{Call, RateLimitService};

const LIMITS: &str = include_str!("../../../envoy/ratelimit/limitador.yaml");
const REFERENCE: &str = include_str!("../../../envoy/ratelimit/envoyproxy-ratelimit.yaml");
const README: &str = include_str!("../../../envoy/ratelimit/README.md");
const A: &str = "tenant-a";
const B: &str = "tenant-b";

struct Fleet {
    redis: Redis,
    backend: Backend,
    service: RateLimitService,
    quota: u64,
}

impl Fleet {
    /// `None` where the tests are skipped.
    fn start(quota: u64) -> Option<Self> {
        if missing() || redis_missing() {
            return None;
        }
        let (redis, backend) = (Redis::start().unwrap(), Backend::start(answer).unwrap());
        let service = service(&redis, quota, 0);
        Some(Self { redis, backend, service, quota })
    }

    fn builder(&self, fail_closed: bool) -> Builder {
        Envoy::builder().template(RATELIMIT_YAML).edit(|t| {
            t.port(8081, self.service.port())?;
            t.port(18001, self.backend.port())?;
            // A busy machine is not what is tested.
            t.replace(" timeout: 0.25s", " timeout: 10s")?;
            t.replace("failure_mode_deny: false", &format!("failure_mode_deny: {fail_closed}"))
        })
    }

    fn envoy(&self, fail_closed: bool) -> Envoy {
        self.builder(fail_closed).start().unwrap()
    }

    fn calls(&self, tenant: &str) -> Vec<Call> {
        self.service.calls().into_iter().filter(|call| call.value == tenant).collect()
    }

    /// What was added for a tenant, in no order, once that is so many numbers.
    fn added(&self, tenant: &str, count: usize) -> Vec<u64> {
        let calls = eventually("the service to be called", || {
            Some(self.calls(tenant)).filter(|calls| calls.len() >= count)
        });
        let mut added: Vec<u64> = calls.unwrap().iter().map(|call| call.addend).collect();
        added.sort_unstable();
        added
    }

    fn die_and_restart(&mut self, meanwhile: impl FnOnce()) {
        let port = self.service.port();
        self.service.stop();
        meanwhile();
        self.service = service(&self.redis, self.quota, port);
    }
}

fn service(redis: &Redis, quota: u64, port: u16) -> RateLimitService {
    assert_eq!(LIMITS.matches("1000000").count(), 1);
    let limits = LIMITS.replacen("1000000", &quota.to_string(), 1);
    RateLimitService::start(&redis.url(), &limits, port).unwrap()
}

/// A request of a tenant, who is told by a key: 70 token ids and a cap of 100,
/// so what it may need is known exactly. The replica answers as `x-answer` says.
fn ask(tenant: &str, answer: &str) -> Request {
    let body = json!({"model": "m", "max_tokens": 100, "prompt": vec![7; 70]});
    Request::post("/v1/completions", body.to_string())
        .with("authorization", &format!("Bearer {}", tenant.replace("tenant", "key-of")))
        .with("x-tenant-id", "of-the-client")
        .with("x-answer", answer)
}

fn status(envoy: &Envoy, tenant: &str, answer: &str) -> u16 {
    ask(tenant, answer).send(envoy.port()).unwrap().status
}

fn usage(output: u64) -> String {
    json!({"choices": [], "usage": {"prompt_tokens": 70, "completion_tokens": output}}).to_string()
}

fn answer(request: &Request) -> Answer {
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
    let stated = format!("data: {}\n\n", usage(2));
    match request.header("x-answer").unwrap_or("json") {
        "json" => Answer::json(200, usage(2)),
        "stream" => Answer::stream(&[event, &stated, "data: [DONE]\n\n"]),
        "silent" => Answer::stream(&[event, "data: [DONE]\n\n"]),
        "endless" => Answer::stream(&[event; 500]).pause(Duration::from_millis(20)),
        "cut" => Answer::stream(&[event, event]).broken(),
        "nothing" => Answer::nothing(),
        "500" => Answer::json(500, usage(2)),
        output => {
            let output = output.parse().unwrap();
            Answer::json(200, usage(output)).pause(Duration::from_millis(15))
        }
    }
}

/// Many clients at a time, on both Envoys, until each is refused.
#[test]
fn two_envoys_keep_one_quota() {
    const CLIENTS: usize = 8;
    const QUOTA: u64 = 20_000;
    let Some(fleet) = Fleet::start(QUOTA) else { return };
    let envoys = [fleet.envoy(true), fleet.envoy(true)];
    let client = |number: usize| {
        let (envoy, mut tokens) = (&envoys[number % 2], 0);
        for round in 0..1000 {
            let output = 30 + (number * 311 + round * 173) as u64 % 900;
            match status(envoy, A, &output.to_string()) {
                200 => tokens += 70 + output,
                429 => return tokens,
                other => panic!("{other}"),
            }
        }
        panic!("never refused: {tokens}");
    };
    let served: Vec<u64> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || client(n))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let total: u64 = served.iter().sum();
    // Whoever was served is charged, exactly.
    let charges = |calls: &[Call]| -> Vec<u64> {
        calls.iter().map(|call| call.addend).filter(|addend| *addend > 1).collect()
    };
    let charged = || charges(&fleet.calls(A)).iter().sum::<u64>();
    eventually("all charges", || (charged() >= total).then_some(())).unwrap();
    assert_eq!(charged(), total);
    // From the moment of exhaustion on, only those are charged that were
    // admitted before it.
    let calls = fleet.calls(A);
    let exhausted = calls.iter().position(|call| call.over_limit).unwrap();
    let in_flight = charges(&calls[exhausted..]);
    // A client's last charge may still be on its way when its next request is
    // admitted: Envoy does not wait for it.
    assert!(in_flight.len() <= 2 * CLIENTS, "{in_flight:?}");
    assert!(total <= QUOTA + in_flight.iter().sum::<u64>(), "{total}, {in_flight:?}");
    assert!(total + calls.len() as u64 > QUOTA, "refused too early: {total}");
    for envoy in &envoys {
        assert_eq!(status(envoy, A, "json"), 429);
        assert_eq!(status(envoy, B, "json"), 200, "another tenant's quota is whole");
    }
    // A refusal is charged nothing but its check.
    assert_eq!(fleet.added(B, 4), [1, 1, 72, 72]);
    assert_eq!(charged(), total);
}

#[test]
fn every_end_of_a_stream_is_charged_once() {
    let Some(fleet) = Fleet::start(1_000_000) else { return };
    let envoy = fleet.envoy(true);
    let mut added = Vec::new();
    let mut fences = 0;
    for (end, tokens) in [
        ("json", Some(72..=72)),
        ("stream", Some(72..=72)),
        // The prompt and the events that passed, `[DONE]` included.
        ("silent", Some(72..=72)),
        ("cut", Some(72..=72)),
        ("abort", Some(70..=120)),
        ("nothing", None),
        ("500", None),
    ] {
        if end == "abort" {
            let mut client = Connection::open(envoy.port()).unwrap();
            client.write(&ask(A, "endless").bytes()).unwrap();
            client.head().unwrap();
        } else {
            // What is cut off is an error to this client.
            drop(ask(A, end).send(envoy.port()));
        }
        let count = added.len() + 1 + usize::from(tokens.is_some());
        fleet.added(A, count);
        // Whatever else was to come has come when the next request is charged.
        assert_eq!(status(&envoy, B, "json"), 200);
        fences += 2;
        fleet.added(B, fences);
        let mut new = fleet.added(A, count);
        for old in &added {
            new.remove(new.iter().position(|one| one == old).unwrap());
        }
        let charged = new.split_first().map(|(check, charge)| (*check, charge));
        match (charged, &tokens) {
            (Some((1, [])), None) => {}
            (Some((1, [charge])), Some(tokens)) if tokens.contains(charge) => {}
            _ => panic!("{end}: {new:?}, not 1 and {tokens:?}"),
        }
        added.extend(new);
    }
}

#[test]
fn without_the_service_each_envoy_does_as_it_is_told() {
    let Some(mut fleet) = Fleet::start(140) else { return };
    let (open, closed) = (fleet.envoy(false), fleet.envoy(true));
    // 73, then 146.
    for (envoy, count) in [(&open, 2), (&closed, 4)] {
        assert_eq!(status(envoy, A, "json"), 200);
        fleet.added(A, count);
    }
    assert_eq!((status(&open, A, "json"), status(&closed, A, "json")), (429, 429));
    fleet.die_and_restart(|| {
        for tenant in [A, B] {
            assert_eq!(status(&open, tenant, "json"), 200);
            assert_eq!(status(&closed, tenant, "json"), 500);
        }
    });
    for (envoy, counter) in [(&open, "failure_mode_allowed"), (&closed, "error")] {
        assert_eq!(envoy.counter(&format!("cluster.pool.ratelimit.{counter}")), Ok(2));
        assert_eq!(envoy.counter("cluster.pool.ratelimit.over_limit"), Ok(1));
    }
    // The count was in Redis.
    assert_eq!((status(&open, A, "json"), status(&closed, A, "json")), (429, 429));
    assert_eq!((status(&open, B, "json"), status(&closed, B, "json")), (200, 200));
}

/// A limit of the filter's own needs no service. The tenant may have 170 tokens
/// at once, which is one request; that of another tenant has ended before.
#[test]
fn without_the_service_limits_in_the_filter_hold() {
    let Some(mut fleet) = Fleet::start(1_000_000) else { return };
    let own = json!({"version": 1,
        "models": [{"match": "*", "pools": [
            {"name": "pool", "cluster": "pool", "max_model_len": 131_072}]}],
        "tenants": {"from": [{"header": "x-tenant-id"}], "default": "others", "entitlements": [
            {"name": "others", "tokens_per_second": 1},
            {"name": A, "tokens_per_second": 1, "burst": 170, "reserve_output": "cap"},
            {"name": B, "tokens_per_second": 1, "burst": 170, "reserve_output": "cap"}]}});
    let start = |fail_closed| {
        let builder = fleet.builder(fail_closed).configuration(&own.to_string());
        builder.start().unwrap()
    };
    let (open, closed) = (start(false), start(true));
    let count = |envoy: &Envoy, name: &str| envoy.counter(&format!("wasmcustom.tidegate.{name}"));
    // Used up while the service is there; what fails closed lets nothing pass later.
    assert_eq!(status(&closed, A, "json"), 200);
    fleet.added(A, 2);
    fleet.service.stop();
    assert_eq!(status(&open, A, "json"), 200);
    for envoy in [&open, &closed] {
        let refused = ask(A, "json").send(envoy.port()).unwrap();
        assert_eq!(refused.status, 429);
        // So says the filter, not the service.
        assert!(refused.header("retry-after").is_some(), "{refused:?}");
        assert_eq!(count(envoy, "refused.tokens"), Ok(1));
        let settled = || (count(envoy, &format!("tenant_settled.{A}")) == Ok(72)).then_some(());
        eventually("one request to settle", settled).unwrap();
    }
    assert_eq!(status(&open, B, "json"), 200);
    // What the missing service refuses is given back: there is room for one at a time.
    for _ in 0..3 {
        assert_eq!(status(&closed, B, "json"), 500);
    }
    assert_eq!(count(&closed, &format!("tenant_admitted.{B}")), Ok(3));
    assert_eq!(count(&closed, "refused.tokens"), Ok(1));
}

#[test]
fn a_client_cannot_name_its_tenant() {
    let Some(fleet) = Fleet::start(1) else { return };
    let named = fleet.envoy(true);
    assert_eq!(status(&named, "tenant-x", "json"), 401);
    assert_eq!(fleet.service.calls(), []);
    // If nobody else does, it has none, and no limit.
    let builder =
        fleet.builder(true).replace("header: x-tenant-id, hide", "header: x-client, hide");
    let nameless = builder.start().unwrap();
    for _ in 0..3 {
        assert_eq!(status(&nameless, A, "json"), 200);
    }
    assert_eq!(fleet.service.calls(), []);
}

/// What README says of services that know no addend of a descriptor.
#[test]
fn the_reserve_can_be_charged_when_the_request_comes() {
    let Some(fleet) = Fleet::start(400) else { return };
    let filter = README.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let filter: String = filter.lines().map(|line| format!("          {line}\n")).collect();
    let next = "          - name: envoy.filters.http.ratelimit\n";
    let builder = fleet.builder(true).edit(|t| {
        t.replace(next, &format!("{filter}{next}"))?;
        t.remove_line("hits_addend: { number: 1 }")?;
        t.remove_line("- actions: *tenant")?;
        t.remove_line("hits_addend: { format:")?;
        t.remove_line("apply_on_stream_done: true")
    });
    let envoy = builder.start().unwrap();
    assert_eq!(status(&envoy, A, "json"), 200);
    assert_eq!(fleet.added(A, 1), [170]);
    assert_eq!(status(&envoy, A, "json"), 200);
    assert_eq!(fleet.added(A, 2), [170, 170]);
    assert_eq!(status(&envoy, A, "json"), 429);
}

#[test]
fn both_files_of_limits_say_the_same() {
    let lines = |text: &str, token: &str| text.lines().filter(|l| l.contains(token)).count();
    for (limitador, reference) in [
        ("\"namespace\": \"tidegate\"", "domain: tidegate"),
        ("\"variables\": [\"descriptors[0].tenant\"]", "- key: tenant"),
        ("\"seconds\": 3600", "unit: hour"),
        ("\"max_value\": 1000000", "requests_per_unit: 1000000"),
    ] {
        assert_eq!((lines(LIMITS, limitador), lines(REFERENCE, reference)), (1, 1), "{reference}");
    }
}
