//! `envoy/istio/`: there is no Istio here, but every patch is Envoy
//! configuration. They go where Istio puts them, in a configuration shaped like
//! that of an ingress gateway, and a real Envoy runs it.

use tidegate_envoy_support::{Answer, Backend, ENVOY_YAML, Envoy, Request, missing};

type Outcome = Result<(), String>;

const ENVOY_FILTER: &str = include_str!("../../../envoy/istio/envoyfilter.yaml");
const WASM_PLUGIN: &str = include_str!("../../../envoy/istio/wasmplugin.yaml");

/// What istiod makes of routes.yaml, as far as it matters here. A comment says
/// where a patch goes.
const GATEWAY: &str = r#"
admin:
  address: { socket_address: { address: 127.0.0.1, port_value: 9901 } }
# BOOTSTRAP
static_resources:
  listeners:
  - name: gateway
    address: { socket_address: { address: 0.0.0.0, port_value: 10000 } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: outbound_0.0.0.0_8080
          use_remote_address: true
          normalize_path: true
          # NETWORK_FILTER
          http_filters:
          # HTTP_FILTER
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          route_config:
            name: http.8080
            virtual_hosts:
            - name: llm.example.com:80
              domains: ["*"]
              include_request_attempt_count: true
              # VIRTUAL_HOST
              routes:
              - name: tidegate-smaller
                match: { prefix: "/", headers: [{ name: x-tidegate-pool, string_match: { exact: short } }] }
                # HTTP_ROUTE
              - name: tidegate-largest
                match: { prefix: "/" }
                route: { cluster: outbound|8000||vllm-long.llm.svc.cluster.local, timeout: 0s }
  clusters:
  # CLUSTER
  - name: outbound|8000||vllm-short.llm.svc.cluster.local
    load_assignment:
      cluster_name: outbound|8000||vllm-short.llm.svc.cluster.local
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 18001 } } }
  - name: outbound|8000||vllm-long.llm.svc.cluster.local
    load_assignment:
      cluster_name: outbound|8000||vllm-long.llm.svc.cluster.local
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 18101 } } }
"#;

/// What belongs to the key `head`: the lines below it that are indented deeper
/// or are items of its list, without their common indentation, comments and
/// empty lines.
fn block(text: &str, head: &str) -> Result<Vec<String>, String> {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut lines = text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
        .skip_while(|line| line.trim() != head);
    let head_depth = depth(lines.next().ok_or_else(|| format!("no {head}"))?);
    let body: Vec<&str> = lines
        .take_while(|line| {
            depth(line) > head_depth || (depth(line) == head_depth && line.trim().starts_with("- "))
        })
        .collect();
    let common = body.first().map(|line| depth(line)).ok_or_else(|| format!("{head} is empty"))?;
    Ok(body.iter().map(|line| line.get(common..).unwrap_or_default().to_string()).collect())
}

/// The patch of a kind; there is one of each.
fn patch(kind: &str) -> Result<Vec<String>, String> {
    let parts: Vec<&str> = ENVOY_FILTER
        .split("\n  - applyTo: ")
        .filter(|part| part.lines().next() == Some(kind))
        .collect();
    let [part] = parts.as_slice() else { return Err(format!("{} of {kind}", parts.len())) };
    block(part, "value:")
}

/// Puts every patch into its place.
fn patched() -> Result<String, String> {
    let mut out = Vec::new();
    let mut used = 0;
    for line in GATEWAY.lines() {
        out.push(line.to_string());
        let Some((indent, kind)) = line.split_once("# ") else { continue };
        let mut lines = patch(kind)?;
        used += 1;
        match kind {
            // Merged into a map that has its type already.
            "NETWORK_FILTER" => {
                lines = block(&lines.join("\n"), "typed_config:")?;
                lines.retain(|line| !line.starts_with("\"@type\""));
            }
            "HTTP_FILTER" | "CLUSTER" => {
                for (n, line) in lines.iter_mut().enumerate() {
                    *line = format!("{}{line}", if n == 0 { "- " } else { "  " });
                }
            }
            _ => {}
        }
        out.extend(lines.iter().map(|line| format!("{indent}{line}")));
    }
    assert_eq!(ENVOY_FILTER.matches("applyTo:").count(), used, "a patch was not used");
    Ok(out.join("\n"))
}

fn chat(bytes: usize) -> Request {
    let text = "word ".repeat(bytes / 5);
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
    Request::post("/v1/chat/completions", body)
}

fn pools() -> Result<(Backend, Backend), String> {
    let short = Backend::start(|request| match request.header("x-answer") {
        Some("overflow") => Answer::json(400, "context length"),
        _ => Answer::json(200, "short"),
    })?;
    Ok((short, Backend::start(|_| Answer::json(200, "long"))?))
}

#[test]
fn the_envoy_filter_does_what_envoy_yaml_does() -> Outcome {
    if missing() {
        return Ok(());
    }
    let (short, long) = pools()?;
    let envoy = Envoy::builder()
        .template(&patched()?)
        .replace("/etc/tidegate/tidegate.wasm", "target/tidegate.wasm")
        .edit(|t| t.port(18001, short.port()))
        .edit(|t| t.port(18101, long.port()));
    envoy.validate()?;
    let envoy = envoy.start()?;
    for (size, pool) in [(10, "short"), (100_000, "long"), (3_000_000, "long")] {
        let answer = chat(size).with("x-tidegate-pool", "nowhere").send(envoy.port())?;
        assert_eq!((answer.status, answer.text()), (200, pool.into()));
        assert_eq!(answer.header("x-tidegate-pool"), Some(pool));
    }
    let answer = chat(10).with("x-answer", "overflow").send(envoy.port())?;
    assert_eq!((answer.text(), answer.header("x-envoy-attempt-count")), ("long".into(), Some("2")));
    assert!(envoy.prometheus()?.contains(r#"tidegate_requests{pool="short"} 2"#));
    let log = envoy.access_log_of(4)?;
    assert!(log.iter().all(|line| line.get("pool").is_some()), "{log:?}");

    drop(short);
    let answer = chat(10).send(envoy.port())?;
    assert_eq!((answer.status, answer.text()), (200, "long".into()));
    Ok(())
}

#[test]
fn the_wasm_plugin_needs_no_flag() -> Outcome {
    if missing() {
        return Ok(());
    }
    let (short, long) = pools()?;
    let envoy = Envoy::builder()
        .template(ENVOY_YAML)
        .backends([short.port(); 2], [long.port(); 2])
        .configuration(&block(WASM_PLUGIN, "pluginConfig:")?.join("\n"))
        .replace("allow_on_headers_stop_iteration: true", "allow_on_headers_stop_iteration: false");
    envoy.validate()?;
    let envoy = envoy.start()?;
    for (size, pool) in [(10, "short"), (100_000, "long")] {
        assert_eq!(chat(size).send(envoy.port())?.text(), pool);
        let chunked = chat(size).with("transfer-encoding", "chunked");
        assert_eq!(chunked.send(envoy.port())?.text(), "long", "no length: the largest pool");
    }
    Ok(())
}

/// The copies of what ../envoy.yaml says must not drift away from it.
#[test]
fn the_copies_are_the_same() -> Outcome {
    for head in ["stats_tags:", "histogram_bucket_settings:", "mutations:", "retry_priority:"] {
        let mine: Vec<_> = block(ENVOY_FILTER, head)?;
        let other: Vec<_> = block(ENVOY_YAML, head)?;
        assert_eq!(mine, other, "{head}");
    }
    Ok(())
}
