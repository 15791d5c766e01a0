//! The live pools over real sockets: what a gateway and its clients see.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at once"
)]

mod common;

use common::{await_metric, client, events, json, metric, pools};
use serde_json::{Value, json};
use tidegate_sim_cli::client::read_all;
use tidegate_sim_cli::tokenizer::Tokenizer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// `hello` is one token; with the template of one message a chat has 8.
fn chat(fields: &Value) -> String {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body.to_string()
}

fn completion(fields: &Value) -> String {
    let mut body = json!({"model": "m", "prompt": "hello world"});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body.to_string()
}

fn usage(prompt: u64, completion: u64) -> Value {
    json!({"prompt_tokens": prompt, "total_tokens": prompt + completion,
           "completion_tokens": completion})
}

fn full_usage(prompt: u64, completion: u64) -> Value {
    let mut usage = usage(prompt, completion);
    usage["prompt_tokens_details"] = Value::Null;
    usage
}

fn count(text: &str) -> u64 {
    "cl100k_base".parse::<Tokenizer>().unwrap().count(text).into()
}

const WANTS_20: &[(&str, &str)] = &[("x-sim-output-tokens", "20")];
const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn a_full_chat_answer_has_vllms_shape_and_usage() {
    let handle = pools().await;
    let response = client(&handle, "short").post(CHAT, WANTS_20, chat(&json!({}))).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["x-sim-pool"], "short");
    let bytes = read_all(response.into_body()).await.unwrap();
    // vLLM's order of fields, which scanners meet.
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let exact = r#""usage":{"prompt_tokens":8,"total_tokens":28,"completion_tokens":20,"prompt_tokens_details":null}"#;
    assert!(text.contains(exact), "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "m");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(answer["usage"], full_usage(8, 20));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(count(choice["message"]["content"].as_str().unwrap()), 20);
    handle.stop().await;
}

#[tokio::test]
async fn a_full_completion_defaults_to_sixteen_tokens() {
    let handle = pools().await;
    let client = client(&handle, "short");
    let body = completion(&json!({}));
    let answer = json(client.post(COMPLETIONS, WANTS_20, body).await.unwrap()).await;
    assert_eq!(answer["object"], "text_completion");
    assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(answer["usage"], full_usage(2, 16));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(count(answer["choices"][0]["text"].as_str().unwrap()), 16);
    let body = completion(&json!({"max_tokens": 20}));
    let answer = json(client.post(COMPLETIONS, WANTS_20, body).await.unwrap()).await;
    // The model was done at its cap: that is no cut.
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"], full_usage(2, 20));
}

#[tokio::test]
async fn streams_carry_usage_only_when_asked() {
    let handle = pools().await;
    let client = client(&handle, "short");
    let ask = async |path: &str, body: String| {
        events(client.post(path, WANTS_20, body).await.unwrap()).await
    };
    for path in [CHAT, COMPLETIONS] {
        let (prompt, roles) = if path == CHAT { (8, 1) } else { (2, 0) };
        let body = |options: Value| {
            let mut fields = json!({"stream": true, "max_tokens": 50});
            if !options.is_null() {
                fields["stream_options"] = options;
            }
            if path == CHAT { chat(&fields) } else { completion(&fields) }
        };
        for options in [Value::Null, json!({"include_usage": false})] {
            let documents = ask(path, body(options)).await;
            assert_eq!(documents.len(), roles + 20);
            assert!(documents.iter().all(|d| d.get("usage").is_none()), "{path}");
        }
        let documents = ask(path, body(json!({"include_usage": true}))).await;
        assert_eq!(documents.len(), roles + 21);
        let (last, others) = documents.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"], usage(prompt, 20));
        assert!(others.iter().all(|d| d.get("usage").is_none()), "{path}");
        let options = json!({"include_usage": true, "continuous_usage_stats": true});
        let documents = ask(path, body(options)).await;
        let counts: Vec<u64> =
            documents.iter().map(|d| d["usage"]["completion_tokens"].as_u64().unwrap()).collect();
        let mut expected: Vec<u64> = vec![0; roles];
        expected.extend((1..=20).chain([20]));
        assert_eq!(counts, expected);
        assert!(documents.iter().all(|d| d["usage"]["prompt_tokens"] == prompt), "{path}");
    }
}

#[tokio::test]
async fn a_stream_says_the_same_as_a_full_answer() {
    let handle = pools().await;
    let client = client(&handle, "short");
    let full = json(client.post(CHAT, WANTS_20, chat(&json!({}))).await.unwrap()).await;
    let body = chat(&json!({"stream": true}));
    let documents = events(client.post(CHAT, WANTS_20, body).await.unwrap()).await;
    assert_eq!(documents[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let deltas: Vec<&str> =
        documents.iter().map(|d| d["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert_eq!(Value::from(deltas.concat()), full["choices"][0]["message"]["content"]);
    assert!(deltas[1..].iter().all(|delta| count(delta) == 1), "{deltas:?}");
    let finishes: Vec<&Value> =
        documents.iter().map(|d| &d["choices"][0]["finish_reason"]).collect();
    assert!(finishes[..20].iter().all(|finish| finish.is_null()));
    assert_eq!(finishes[20], "stop");
}

#[tokio::test]
async fn several_choices_and_prompts_add_up() {
    let handle = pools().await;
    let client = client(&handle, "short");
    let body = chat(&json!({"n": 2, "max_tokens": 12}));
    let answer = json(client.post(CHAT, WANTS_20, body).await.unwrap()).await;
    assert_eq!(answer["choices"].as_array().unwrap().len(), 2);
    assert_eq!(answer["usage"], full_usage(8, 24));
    assert_ne!(answer["choices"][0]["message"], answer["choices"][1]["message"]);
    let body = completion(&json!({"prompt": ["hello", "hello world"], "n": 2, "stream": true,
        "max_tokens": 5, "stream_options": {"include_usage": true}}));
    let documents = events(client.post(COMPLETIONS, WANTS_20, body).await.unwrap()).await;
    assert_eq!(documents.len(), 4 * 5 + 1);
    assert_eq!(documents[20]["usage"], usage(3, 20));
    for index in 0..4 {
        let own = documents[..20].iter().filter(|d| d["choices"][0]["index"] == index);
        let finishes: Vec<&Value> = own.map(|d| &d["choices"][0]["finish_reason"]).collect();
        assert_eq!(
            finishes,
            [&Value::Null, &Value::Null, &Value::Null, &Value::Null, &json!("length")]
        );
    }
}

#[tokio::test]
async fn answers_are_cut_at_the_cap_and_at_the_window() {
    let handle = pools().await;
    let client = client(&handle, "short");
    let long: &[_] = &[("x-sim-output-tokens", "5000")];
    let answer =
        json(client.post(CHAT, long, chat(&json!({"max_tokens": 7}))).await.unwrap()).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"], full_usage(8, 7));
    // Uncapped, up to the window of 200.
    let answer = json(client.post(CHAT, long, chat(&json!({}))).await.unwrap()).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"], full_usage(8, 192));
}

#[tokio::test]
async fn without_the_header_equal_prompts_want_equal_lengths() {
    let handle = pools().await;
    let client = client(&handle, "long");
    let mut lengths = Vec::new();
    for content in ["hello", "hello", "goodbye", "water"] {
        let body = chat(&json!({"messages": [{"role": "user", "content": content}]}));
        let answer = json(client.post(CHAT, &[], body).await.unwrap()).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        lengths.push(answer["usage"]["completion_tokens"].as_u64().unwrap());
    }
    assert_eq!(lengths[0], lengths[1]);
    assert!(lengths.iter().any(|&length| length != lengths[0]), "{lengths:?}");
}

#[tokio::test]
async fn refusals_have_vllms_words_and_status() {
    let handle = pools().await;
    let client = client(&handle, "short");
    let refused = async |path: &str, headers: &[(&str, &str)], body: String| {
        let response = client.post(path, headers, body).await.unwrap();
        assert_eq!(response.headers()["x-sim-pool"], "short");
        let status = response.status().as_u16();
        (status, json(response).await["error"].clone())
    };
    let (status, error) = refused(CHAT, &[], chat(&json!({"max_tokens": 193}))).await;
    assert_eq!(
        (status, &error["type"], &error["code"]),
        (400, &json!("BadRequestError"), &json!(400))
    );
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("This model's maximum context length is 200 tokens."), "{message}");
    assert!(message.contains("at least 8 input tokens, for a total of at least 201"), "{message}");
    // The prompt alone.
    let content = vec!["hello"; 400].join(" ");
    let body = chat(&json!({"messages": [{"role": "user", "content": content}]}));
    let (status, error) = refused(CHAT, &[], body).await;
    assert_eq!(status, 400);
    assert!(error["message"].as_str().unwrap().contains("requested 0 output tokens"));
    let (status, error) = refused(CHAT, &[], chat(&json!({"model": "other"}))).await;
    assert_eq!((status, &error["message"]), (404, &json!("The model `other` does not exist.")));
    let (status, error) = refused(CHAT, &[], "{\"messages\":".into()).await;
    assert_eq!((status, &error["code"]), (400, &json!(400)));
    let (status, _) = refused(CHAT, &[("x-sim-status", "503")], chat(&json!({}))).await;
    assert_eq!(status, 503);
    let (status, error) = refused(CHAT, &[("x-sim-output-tokens", "0")], chat(&json!({}))).await;
    assert_eq!(status, 400);
    assert!(error["message"].as_str().unwrap().contains("x-sim-output-tokens"), "{error}");
}

#[tokio::test]
async fn the_other_paths_answer() {
    let handle = pools().await;
    let client = client(&handle, "long");
    let get = async |path: &str| client.send("GET", path, &[], "").await.unwrap();
    let models = json(get("/v1/models").await).await;
    assert_eq!(models["data"][0]["id"], "m");
    assert_eq!(models["data"][0]["max_model_len"], 2000);
    assert_eq!(get("/health").await.status(), 200);
    assert_eq!(get("/nowhere").await.status(), 404);
    let wrong_method = get(CHAT).await;
    assert_eq!(
        (wrong_method.status().as_u16(), &wrong_method.headers()["allow"]),
        (405, &"POST".parse().unwrap())
    );
    let form = [("content-type", "multipart/form-data")];
    assert_eq!(client.send("POST", CHAT, &form, "x").await.unwrap().status(), 400);
}

#[tokio::test]
async fn metrics_count_what_was_done() {
    let handle = pools().await;
    let client = client(&handle, "short");
    read_all(client.post(CHAT, WANTS_20, chat(&json!({}))).await.unwrap().into_body())
        .await
        .unwrap();
    let body = chat(&json!({"max_tokens": 5}));
    read_all(client.post(CHAT, WANTS_20, body).await.unwrap().into_body()).await.unwrap();
    assert_eq!(metric(&client, "vllm:prompt_tokens_total", "model_name=\"m\"").await, 16.0);
    assert_eq!(metric(&client, "vllm:generation_tokens_total", "").await, 25.0);
    assert_eq!(metric(&client, "vllm:request_success_total", "\"stop\"").await, 1.0);
    assert_eq!(metric(&client, "vllm:request_success_total", "\"length\"").await, 1.0);
    assert_eq!(metric(&client, "vllm:time_to_first_token_seconds_count", "").await, 2.0);
    assert_eq!(metric(&client, "vllm:inter_token_latency_seconds_count", "").await, 23.0);
    let buckets = metric(&client, "vllm:e2e_request_latency_seconds_bucket", "\"+Inf\"").await;
    assert_eq!(buckets, 2.0);
    assert_eq!(metric(&client, "vllm:num_requests_running", "").await, 0.0);
    assert_eq!(metric(&client, "vllm:kv_cache_usage_perc", "").await, 0.0);
}

/// Opens a request that would run for long, and hangs up.
async fn hang_up(handle: &tidegate_sim_cli::serve::Handle, stream: bool) {
    let client = client(handle, "long");
    let body = chat(&json!({"stream": stream}));
    let mut socket = tokio::net::TcpStream::connect(handle.pool("long")[0]).await.unwrap();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
         x-sim-output-tokens: 1900\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    await_metric(&client, "vllm:num_requests_running", "", 1.0).await;
    if stream {
        socket.read_exact(&mut [0; 100]).await.unwrap();
    }
    drop(socket);
    await_metric(&client, "vllm:num_requests_running", "", 0.0).await;
    assert_eq!(metric(&client, "vllm:request_success_total", "\"abort\"").await, 1.0);
    assert_eq!(metric(&client, "vllm:request_success_total", "\"length\"").await, 0.0);
    assert_eq!(metric(&client, "vllm:request_success_total", "\"stop\"").await, 0.0);
    assert_eq!(metric(&client, "vllm:kv_cache_usage_perc", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_aborts_its_stream() {
    hang_up(&pools().await, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_aborts_its_full_answer() {
    hang_up(&pools().await, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_replica_is_gone_and_comes_back_on_its_port() {
    let mut handle = pools().await;
    let addresses = handle.pool("short");
    assert_eq!(addresses.len(), 2);
    let client = client(&handle, "short");
    let slow: &[_] = &[("x-sim-output-tokens", "180")];
    let body = chat(&json!({"stream": true}));
    let under_way = client.post(CHAT, slow, body).await.unwrap();
    handle.kill("short", 0).await.unwrap();
    handle.kill("short", 0).await.unwrap();
    assert!(read_all(under_way.into_body()).await.is_err(), "the stream went on");
    assert!(client.send("GET", "/health", &[], "").await.is_err());
    let other = tidegate_sim_cli::client::Client::new(&format!("http://{}", addresses[1])).unwrap();
    assert_eq!(other.send("GET", "/health", &[], "").await.unwrap().status(), 200);
    handle.restart("short", 0).await.unwrap();
    assert_eq!(handle.pool("short"), addresses);
    let answer = json(client.post(CHAT, WANTS_20, chat(&json!({}))).await.unwrap()).await;
    assert_eq!(answer["usage"], full_usage(8, 20));
    let error = handle.kill("short", 2).await.unwrap_err().to_string();
    assert!(error.contains("short/2") && error.contains("short/0, short/1, long/0"), "{error}");
    handle.stop().await;
    assert!(client.send("GET", "/health", &[], "").await.is_err());
}

#[tokio::test]
async fn http2_with_prior_knowledge_works() {
    let handle = pools().await;
    let socket = tokio::net::TcpStream::connect(handle.pool("short")[0]).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(socket);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = hyper::Request::post("http://a/v1/chat/completions")
        .header("content-type", "application/json")
        .header("x-sim-output-tokens", "20")
        .body(http_body_util::Full::new(hyper::body::Bytes::from(chat(&json!({})))))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.version(), hyper::Version::HTTP_2);
    assert_eq!(json(response).await["usage"], full_usage(8, 20));
    drop(sender);
    connection.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let text = format!(
        r#"{{"pools": [{{"name": "a", "model": "m", "max_model_len": 9, "ports": [{port}]}}]}}"#
    );
    let pools = tidegate_sim_cli::serve::parse_pools(text.as_bytes()).unwrap();
    let error = tidegate_sim_cli::serve::start(pools).await.unwrap_err().to_string();
    assert!(error.contains(&port.to_string()), "{error}");
}

#[tokio::test]
async fn prompts_with_the_same_start_hit_the_prefix_cache() {
    let handle = pools().await;
    let client = client(&handle, "long");
    let start = "one two three ".repeat(30);
    for end in ["red", "blue"] {
        let body = completion(&json!({"prompt": format!("{start}{end}"), "max_tokens": 2}));
        let response = client.post(COMPLETIONS, &[], body).await.unwrap();
        let _ = json(response).await;
    }
    let queries = metric(&client, "vllm:prefix_cache_queries_total", "").await;
    let hits = metric(&client, "vllm:prefix_cache_hits_total", "").await;
    // All full blocks of the second prompt but its last are the first one's.
    assert_eq!(hits, ((queries / 2.0 - 1.0) / 16.0).floor() * 16.0, "of {queries}");
    assert!(hits >= 80.0, "{hits}");
    assert_eq!(metric(&client, "vllm:num_preemptions_total", "").await, 0.0);
    handle.stop().await;
}

/// One seat, and a request that holds it while two others come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lower_priority_goes_first_where_the_pool_schedules_by_it() {
    for (policy, first) in [("fcfs", "plain"), ("priority", "urgent")] {
        let text = format!(
            r#"{{"pools": [{{"name": "a", "model": "m", "max_model_len": 200, "ports": [0],
                "timing": {{"step_ms": 1}},
                "engine": {{"scheduling_policy": "{policy}", "max_num_seqs": 1}}}}]}}"#
        );
        let pools = tidegate_sim_cli::serve::parse_pools(text.as_bytes()).unwrap();
        let handle = tidegate_sim_cli::serve::start(pools).await.unwrap();
        let client = client(&handle, "a");
        let send = async |name: &'static str, priority: i32, tokens: &str| {
            let body = chat(&json!({"priority": priority}));
            let wants = [("x-sim-output-tokens", tokens)];
            client.post(CHAT, &wants, body).await.unwrap();
            name
        };
        let holds = send("holds", 0, "100");
        let (plain, urgent) = (
            async {
                await_metric(&client, "vllm:num_requests_running", "", 1.0).await;
                send("plain", 5, "20").await
            },
            async {
                await_metric(&client, "vllm:num_requests_waiting", "", 1.0).await;
                send("urgent", -5, "20").await
            },
        );
        let (mut plain, mut urgent) = (std::pin::pin!(plain), std::pin::pin!(urgent));
        let race = async {
            tokio::select! {
                name = &mut plain => name,
                name = &mut urgent => name,
            }
        };
        let (_, won) = tokio::join!(holds, race);
        assert_eq!(won, first, "{policy}");
    }
}
