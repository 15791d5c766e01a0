//! The meaning of the scanner, fixed by what `serde_json::Value` says.

mod oracle;

use super::*;
use crate::estimate::Feature;
use crate::nodes::{Node, changes};
use oracle::oracle;
use proptest::prelude::*;

/// A path that says what Gemini's bodies do not.
const PATH: &str = "/v1beta/models/gemini-x:streamGenerateContent?alt=sse";

fn scan(api: Api, body: &[u8], cuts: &[usize]) -> Result<RequestFacts, Invalid> {
    let mut scanner = Scanner::new(api, PATH.as_bytes());
    let mut from = 0;
    for &cut in cuts {
        let cut = cut.clamp(from, body.len());
        scanner.feed(&body[from..cut]);
        from = cut;
    }
    scanner.feed(&body[from..]);
    scanner.finish()
}

fn chat(body: &str) -> RequestFacts {
    scan(Api::Chat, body.as_bytes(), &[]).unwrap()
}

#[test]
fn a_chat_request_is_read() {
    let facts = chat(
        r#"{"model":"llama","messages":[{"role":"system","content":"Be the best."},
           {"role":"user","content":[{"type":"text","text":"Привет"},
             {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}],
           "max_tokens":"1024","max_completion_tokens":256,"n":2,"stream":true,
           "stream_options":{"include_usage":true}}"#,
    );
    assert_eq!(facts.model.as_deref(), Some(&b"llama"[..]));
    assert_eq!(facts.text.total(), 12 + 12, "the image's bytes are no text");
    let media = Media { images: 1, ..Media::default() };
    assert_eq!((facts.messages, facts.media), (2, media));
    assert_eq!(facts.cap, Cap::Tokens(256), "the newer cap wins");
    assert_eq!((facts.n, facts.stream, facts.include_usage), (2, true, Some(true)));
}

#[test]
fn words_inside_strings_and_at_other_paths_are_no_members() {
    let facts = chat(
        r#"{"messages":[{"content":"\"max_tokens\": 5, \"model\": \"x\""}],
           "metadata":{"max_tokens":7,"stream":true,"messages":[{"content":"no"}]}}"#,
    );
    assert_eq!((facts.cap, facts.model, facts.stream), (Cap::Absent, None, false));
    assert_eq!((facts.messages, facts.text.total()), (1, 29));
}

#[test]
fn the_last_duplicate_wins_at_each_level() {
    let facts = chat(
        r#"{"messages":[{"content":"first first"}],"model":"a","mod\u0065l":"b",
           "messages":[{"content":"xx","content":[{"text":"yyyy","text":"z"}]}],
           "max_tokens":9,"max_tokens":null}"#,
    );
    assert_eq!(facts.model.as_deref(), Some(&b"b"[..]));
    assert_eq!((facts.messages, facts.text.total(), facts.cap), (1, 1, Cap::Absent));
}

#[test]
fn prompts_of_a_completion_are_told_apart() {
    let read = |body: &str| scan(Api::Completions, body.as_bytes(), &[]).unwrap();
    let facts = read(r#"{"prompt":["aaaa","bb"],"n":3,"best_of":5}"#);
    assert_eq!((facts.prompts, facts.text.total(), facts.sequences()), (2, 6, 10));
    assert_eq!(facts.largest.unwrap().total(), 4);
    let facts = read(r#"{"prompt":[[1,2,3],[4]]}"#);
    assert_eq!((facts.prompts, facts.token_ids, facts.largest_token_ids), (2, 4, 3));
    let facts = read(r#"{"prompt":[1,2,3]}"#);
    assert_eq!((facts.prompts, facts.token_ids, facts.largest_token_ids), (1, 3, 3));
}

#[test]
fn a_body_cut_short_goes_on_as_it_began() {
    let cut = |api, body: &str, unread| {
        let mut scanner = Scanner::new(api, b"");
        scanner.feed(body.as_bytes());
        scanner.cut(unread)
    };
    // Of 89 bytes 42 are text: of 890 more, 420.
    let body = r#"{"model":"m","messages":[{"pad":"x","content":"the cat and the dog and the bird and the o"#;
    assert_eq!(body.len(), 89);
    let facts = cut(Api::Chat, body, 890).unwrap();
    let mut expected = Tally::read(&body.as_bytes()[47..]);
    expected.extend(420);
    assert_eq!((facts.text.total(), &facts.text), (42 + 420, &expected));
    assert_eq!((facts.model.as_deref(), facts.messages), (Some(&b"m"[..]), 1));
    assert_eq!((facts.cap, facts.output_cap()), (Cap::Unseen, None));
    // Inside an image nothing is text.
    let image =
        format!(r#"{{"messages":[{{"content":[{{"image_url":{{"url":"data:{}"#, "A".repeat(900));
    assert_eq!(cut(Api::Chat, &image, 100_000).unwrap().text.total(), 0);
    // Token ids go on as ids, and an unread cap is not the default of 16.
    let facts = cut(Api::Completions, r#"{"prompt":[1,2,3,4,"#, 1000).unwrap();
    assert_eq!((facts.largest_token_ids, facts.text.total()), (504, 0));
    assert_eq!(facts.output_cap(), None);
    assert!(cut(Api::Chat, "--boundary", 10).is_err());
}

#[test]
fn known_paths() {
    for (path, api) in [
        ("/v1/chat/completions?x=1", Api::Chat),
        ("/team/v1/completions", Api::Completions),
        ("/v1/responses", Api::Responses),
        ("/v1/embeddings", Api::Embeddings),
        ("/pooling", Api::Embeddings),
        ("/rerank", Api::Rerank),
        ("/v2/rerank", Api::Rerank),
        ("/v1/score", Api::Rerank),
        ("/v1/messages?beta=true", Api::Messages),
        ("/v1beta/models/gemini-2.5-pro:generateContent?key=k", Api::Gemini),
        ("/v1/projects/p/publishers/google/models/g:streamGenerateContent", Api::Gemini),
        ("/generate", Api::Generate),
        ("/api/generate", Api::Unknown),
        ("/v1/chat/completions/abc", Api::Unknown),
        ("/v1/messages/count_tokens", Api::Unknown),
        ("/v1/responses/resp_1/cancel", Api::Unknown),
        ("/v1beta/models/g:countTokens", Api::Unknown),
        ("/v1beta/files/g:generateContent", Api::Unknown),
        ("/v1/models", Api::Unknown),
        ("", Api::Unknown),
    ] {
        assert_eq!(Api::of_path(path.as_bytes()), api, "{path}");
    }
}

/// Name, format and body of each seed of the fuzz target.
fn seeds() -> Vec<(String, Api, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/request");
    let mut all: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| {
            let file = file.unwrap();
            let text = std::fs::read_to_string(file.path()).unwrap();
            let api = Api::WORDS[usize::from(text.as_bytes()[0] - b'0')].1;
            (file.file_name().into_string().unwrap(), api, text[2..].to_owned())
        })
        .collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// The facts of a seed, by its name.
fn of_seed(name: &str) -> RequestFacts {
    let seeds = seeds();
    let (_, api, body) = seeds.iter().find(|(seed, ..)| seed == name).unwrap();
    scan(*api, body.as_bytes(), &[]).unwrap()
}

/// Bytes of tool definitions and calls.
fn tool_bytes(facts: &RequestFacts) -> u64 {
    facts.text.get(Feature::Tools) as u64
}

#[test]
fn what_is_no_text_is_counted_not_read() {
    let media = |name: &str| {
        let facts = of_seed(name);
        let Media { images, audio, videos, files } = facts.media;
        ([images, audio, videos, files], facts.text.total())
    };
    // Look: plain No. / the hologram is a file, the empty text is nothing.
    assert_eq!(media("chat-parts"), ([1, 2, 1, 2], 13));
    let tools = tool_bytes(&of_seed("responses-items"));
    let (media_of_items, bytes) = media("responses-items");
    // plain Look: forty-two see raw print(1)
    assert_eq!((media_of_items, bytes - tools), ([4, 0, 0, 1], 5 + 5 + 9 + 3 + 3 + 8));
    assert_eq!(media("gemini-parts").0, [2, 1, 1, 2]);
    assert_eq!(media("generate-batch").0, [3, 1, 0, 0]);
    // Base64 in a tool result is an image; a plain text document is text.
    let facts = of_seed("messages-blocks");
    assert_eq!(facts.media, Media { images: 3, files: 3, ..Media::default() });
    let tools = tool_bytes(&facts);
    let texts = "Be brief.TCplain textblockWhat is it?seenplainSfound";
    assert_eq!(facts.text.total() - tools, texts.len() as u64);
}

#[test]
fn base64_of_any_length_changes_nothing() {
    let mut changed = 0;
    for (name, api, body) in seeds() {
        let long = "Qk1".repeat(100_000);
        let longer = body.replace("iVBORw0KGgo", &long).replace("AAAA", &long);
        changed += usize::from(longer != body && api != Api::Unknown);
        if api != Api::Unknown {
            let [one, other] = [body, longer].map(|body| scan(api, body.as_bytes(), &[]).unwrap());
            assert_eq!(one, other, "{name}");
        }
    }
    assert!(changed >= 7, "{changed} seeds have any");
}

#[test]
fn replayed_reasoning_costs_nothing() {
    let with = |item: &str| {
        let body = format!(r#"{{"input":[{{"role":"user","content":"hi"}}{item}]}}"#);
        scan(Api::Responses, body.as_bytes(), &[]).unwrap()
    };
    let reasoning = r#",{"content":[{"text":"long","type":"reasoning_text"}],
        "summary":[{"text":"s"}],"encrypted_content":"gAAA","type":"reasoning"}"#;
    assert_eq!(with(reasoning), with(""));
    let facts = of_seed("gemini-parts");
    let tools = tool_bytes(&facts);
    assert_eq!(facts.text.total() - tools, "Be brief.Look:".len() as u64);
}

#[test]
fn caps_and_numbers_of_each_format() {
    let read = |name| {
        let facts = of_seed(name);
        (facts.cap, facts.output_cap(), facts.prompts, facts.sequences())
    };
    assert_eq!(read("chat-text"), (Cap::Tokens(64), Some(64), 1, 3));
    assert_eq!(read("responses-text"), (Cap::Tokens(50), Some(50), 1, 1));
    assert_eq!(read("messages-text"), (Cap::Tokens(1024), Some(1024), 1, 1));
    assert_eq!(read("gemini-parts"), (Cap::Tokens(100), Some(100), 1, 2));
    assert_eq!(read("gemini-snake"), (Cap::Tokens(7), Some(7), 1, 1));
    assert_eq!(read("generate-batch"), (Cap::Tokens(200), Some(200), 2, 2));
    assert_eq!(read("generate-loose"), (Cap::Absent, Some(128), 1, 1));
    assert_eq!(read("embeddings-texts"), (Cap::Absent, Some(0), 3, 3));
    assert_eq!(read("rerank-documents"), (Cap::Absent, Some(0), 3, 3));
}

/// SGLang runs the prompt once for each answer, and its usage adds them up.
#[test]
fn answers_of_generate_are_sequences_with_a_prompt_each() {
    let facts = of_seed("generate-text");
    assert_eq!((facts.prompts, facts.n, facts.sequences()), (2, 1, 2));
    assert_eq!(facts.text.total(), 2 * facts.largest.unwrap().total());
}

/// Whatever the order of the members: of texts of one length it is the query.
#[test]
fn the_largest_of_equals_does_not_depend_on_order() {
    let [one, other] = [
        r#"{"query":"text","data_1":"1234","documents":["a","b"]}"#,
        r#"{"data_1":"1234","query":"text","documents":["a","b"]}"#,
    ]
    .map(|body| scan(Api::Rerank, body.as_bytes(), &[]).unwrap());
    assert_eq!(one, other);
}

#[test]
fn a_scorer_reads_pairs() {
    let facts = of_seed("rerank-documents");
    let (query, documents) = ("What is a gate?".len(), [7, 33, 3]);
    assert_eq!(facts.text.total(), (3 * query + documents.iter().sum::<usize>()) as u64);
    assert_eq!(facts.largest.unwrap().total(), (query + 33) as u64);
    let facts = of_seed("rerank-score");
    assert_eq!((facts.prompts, facts.text.total()), (2, 3 + 3 + 5 + 10));
}

/// The engine refuses both at once; the bound that grows must hold all the same.
#[test]
fn messages_beside_inputs_belong_to_the_largest() {
    let body = r#"{"input":["a","bcd"],"messages":[{"content":"four"}]}"#;
    let facts = scan(Api::Embeddings, body.as_bytes(), &[]).unwrap();
    assert_eq!((facts.prompts, facts.text.total(), facts.messages), (2, 8, 1));
    assert_eq!(facts.largest.unwrap().total(), 7);
}

#[test]
fn gemini_says_much_in_its_path() {
    let facts = |path: &str| {
        let mut scanner = Scanner::new(Api::Gemini, path.as_bytes());
        assert!(scanner.knows_model());
        scanner.feed(br#"{"contents":[]}"#);
        let facts = scanner.finish().unwrap();
        (facts.model, facts.stream)
    };
    let model = Some(b"g-2.5".to_vec());
    assert_eq!(facts("/v1beta/models/g-2.5:generateContent"), (model.clone(), false));
    assert_eq!(facts("/v1beta/models/g-2.5:streamGenerateContent?alt=sse"), (model, true));
}

#[test]
fn bytes_of_an_unknown_body_are_counted() {
    let read = |body: &str| scan(Api::Unknown, body.as_bytes(), &[]);
    let facts = read(r#"{"model":"m","x":[1]}"#).unwrap();
    assert_eq!(
        (facts.model.as_deref(), facts.text),
        (Some(&b"m"[..]), Tally::of(Class::Unseen, 21))
    );
    assert_eq!(read("[1]").unwrap().text.total(), 3);
    assert!(read("{").is_err());
}

/// Members that are rendered as JSON. What they repeat is weighed twice, so
/// there nothing is repeated.
const WEIGHED: [&str; 14] = [
    "tools",
    "functions",
    "tool_calls",
    "function_call",
    "functionCall",
    "functionResponse",
    "function_response",
    "executableCode",
    "executable_code",
    "codeExecutionResult",
    "code_execution_result",
    "arguments",
    "action",
    "input",
];

const KEYS: [&str; 30] = [
    "model",
    "messages",
    "prompt",
    "input",
    "max_tokens",
    "n",
    "stream",
    "stream_options",
    "tools",
    "content",
    "text",
    "type",
    "data",
    "source",
    "parts",
    "thought",
    "query",
    "documents",
    "text_1",
    "input_ids",
    "sampling_params",
    "max_new_tokens",
    "generationConfig",
    "mimeType",
    "inlineData",
    "output",
    "image_url",
    "image_data",
    "system",
    "x",
];

const TEXTS: [&str; 14] = [
    "text",
    "image",
    "image_url",
    "reasoning",
    "thinking",
    "document",
    "file",
    "x",
    "1024",
    " 7 ",
    "1_0",
    "16.0",
    "base64",
    "image/png",
];

fn changed() -> impl Strategy<Value = (Api, Node)> {
    let seeds: Vec<(Api, Node)> =
        seeds().into_iter().map(|(_, api, body)| (api, Node::parse(&body))).collect();
    (prop::sample::select(seeds), changes(&KEYS, &TEXTS)).prop_map(|((api, mut node), changes)| {
        node.change(&changes, &WEIGHED);
        (api, node)
    })
}

fn body() -> impl Strategy<Value = (Api, Vec<u8>)> {
    (changed(), any::<bool>()).prop_map(|((api, node), bom)| (api, node.text(bom).into_bytes()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn facts_equal_those_of_a_parsed_tree((api, body) in body()) {
        let facts = scan(api, &body, &[]);
        // The oracle writes out what the scanner multiplies.
        if facts.as_ref().is_ok_and(|facts| facts.prompts > 5000) {
            return Ok(());
        }
        prop_assert_eq!(facts, oracle(api, PATH, &body), "{:?} {}", api, String::from_utf8_lossy(&body));
    }

    #[test]
    fn any_chunking_gives_the_same_facts(
        (api, body) in body(),
        mut cuts in prop::collection::vec(0_usize..3000, 0..9),
    ) {
        cuts.sort_unstable();
        let whole = scan(api, &body, &[]);
        prop_assert_eq!(&scan(api, &body, &cuts), &whole);
        let every: Vec<usize> = (0..body.len()).collect();
        prop_assert_eq!(&scan(api, &body, &every), &whole);
    }

    #[test]
    fn the_text_so_far_is_a_bound_that_grows((api, node) in changed()) {
        // What is repeated is taken back.
        if node.repeats() {
            return Ok(());
        }
        let mut scanner = Scanner::new(api, PATH.as_bytes());
        let (body, mut before) = (node.text(false), 0);
        for byte in body.bytes() {
            scanner.feed(&[byte]);
            prop_assert!(scanner.text_bytes() >= before, "{:?} {}", api, body);
            before = scanner.text_bytes();
        }
        if let Ok(facts) = scanner.finish() {
            let largest = facts.largest.as_ref().unwrap_or(&facts.text).total();
            prop_assert!(before <= largest, "{} > {} in {:?} {}", before, largest, api, body);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>(), cut in any::<u64>()) {
        for (_, api) in Api::WORDS {
            prop_assert_eq!(scan(api, &bytes, &[]), oracle(api, PATH, &bytes));
            let mut scanner = Scanner::new(api, b"");
            scanner.feed(&bytes);
            let _ = scanner.cut(cut);
        }
    }
}
