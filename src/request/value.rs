//! What the members of an object amounted to.

use super::kind::Kind;
use super::prompts::Prompts;
use super::{Api, Cap, Media, RequestFacts, sglang};
use crate::estimate::{Class, Tally};

/// A member that some format reads. Each is one member of one kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Action,
    Answer,
    AnswerSnake,
    Arguments,
    Audio,
    AudioData,
    AudioUrl,
    BestOf,
    Call,
    CallSnake,
    Calls,
    Cap,
    CapSnake,
    Code,
    CodeResult,
    CodeResultSnake,
    CodeSnake,
    Config,
    ConfigSnake,
    Content,
    Context,
    Data,
    Data1,
    Data2,
    DataSnake,
    Documents,
    FileData,
    FileDataSnake,
    Functions,
    Ids,
    Image,
    ImageData,
    IncludeUsage,
    Input,
    Instructions,
    InstructionsSnake,
    Items,
    Kind,
    KindSnake,
    Messages,
    Model,
    N,
    NSnake,
    NewCap,
    Output,
    Parts,
    Prompt,
    PromptEmbeds,
    Queries,
    Query,
    Refusal,
    Source,
    Stream,
    StreamOptions,
    Text,
    Text1,
    Text2,
    Thought,
    Title,
    Tools,
    Video,
    VideoData,
}

/// Content that was added up.
#[derive(Clone, Debug, Default)]
pub(super) struct Sum {
    pub(super) text: Tally,
    /// Bytes of JSON that the chat template renders.
    pub(super) tools: u64,
    pub(super) messages: u64,
    pub(super) media: Media,
}

impl Sum {
    pub(super) fn merge(&mut self, other: &Self) {
        self.text.merge(&other.text);
        self.tools = self.tools.saturating_add(other.tools);
        self.messages = self.messages.saturating_add(other.messages);
        self.media.merge(&other.media);
    }
}

/// A value that is no content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Absent,
    /// It is there.
    Anything,
    Number(Cap),
    Flag(bool),
    Kind(Kind),
    Name(Vec<u8>),
    /// Limits that stand in an object of their own.
    Config {
        cap: Cap,
        n: Cap,
    },
}

/// What an object amounts to.
pub(super) enum Closed {
    Value(Value),
    Sum(Box<Sum>),
}

/// A member of an open object.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) field: Field,
    pub(super) value: Value,
    pub(super) sum: Option<Box<Sum>>,
    pub(super) prompts: Option<Box<Prompts>>,
}

impl Entry {
    pub(super) fn new(field: Field) -> Self {
        Self { field, value: Value::Absent, sum: None, prompts: None }
    }

    pub(super) fn sum(&mut self) -> &mut Sum {
        self.sum.get_or_insert_default()
    }

    pub(super) fn prompts(&mut self) -> &mut Prompts {
        self.prompts.get_or_insert_default()
    }

    /// Takes what an object amounted to that is this member's value.
    #[inline(never)]
    pub(super) fn take(&mut self, closed: Closed, is_prompt: bool) {
        match closed {
            Closed::Sum(sum) if is_prompt => self.prompts().close_object(&sum),
            Closed::Sum(sum) => match &mut self.sum {
                Some(mine) => mine.merge(&sum),
                None => self.sum = Some(sum),
            },
            Closed::Value(Value::Config { cap, n }) => {
                if let Value::Config { cap: old, n: many } = &mut self.value {
                    *old = sglang::larger_cap(*old, cap);
                    *many = sglang::larger(*many, n);
                } else {
                    self.value = Value::Config { cap, n };
                }
            }
            Closed::Value(value) => self.value = value,
        }
    }
}

/// The members of one object.
pub(super) struct Members<'a>(pub(super) &'a mut [Entry]);

impl Members<'_> {
    fn get(&self, field: Field) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.field == field)
    }

    /// Whether the member is there, with a value of its kind.
    pub(super) fn has(&self, field: Field) -> bool {
        self.get(field).is_some_and(|entry| entry.sum.is_some() || entry.value != Value::Absent)
    }

    /// Whether there is any content.
    pub(super) fn any(&self) -> bool {
        self.0.iter().any(|entry| entry.sum.is_some())
    }

    pub(super) fn kind(&self) -> Option<Kind> {
        let named = |field| match self.get(field)?.value {
            Value::Kind(word) => Some(word),
            _ => None,
        };
        named(Field::Kind).or_else(|| named(Field::KindSnake))
    }

    pub(super) fn flag(&self, field: Field) -> Option<bool> {
        match self.get(field)?.value {
            Value::Flag(flag) => Some(flag),
            _ => None,
        }
    }

    /// The limits that an object of its own states.
    pub(super) fn limits(&self) -> Value {
        Value::Config {
            cap: or(self.number(Field::Cap), self.number(Field::CapSnake)),
            n: or(self.number(Field::N), self.number(Field::NSnake)),
        }
    }

    fn number(&self, field: Field) -> Cap {
        match self.get(field).map(|entry| &entry.value) {
            Some(Value::Number(number)) => *number,
            _ => Cap::Absent,
        }
    }

    /// The content of one member, which is then empty.
    pub(super) fn remove(&mut self, field: Field) -> Option<Box<Sum>> {
        self.0.iter_mut().find(|entry| entry.field == field)?.sum.take()
    }

    /// All content together.
    pub(super) fn sum(&mut self) -> Box<Sum> {
        let mut sums = self.0.iter_mut().filter_map(|entry| entry.sum.take());
        let Some(mut all) = sums.next() else { return Box::default() };
        sums.for_each(|sum| all.merge(&sum));
        all
    }

    /// The prompts of some members together, in this order: of prompts of one
    /// length the first is the largest.
    fn prompts(&self, of: &[Field]) -> Prompts {
        let mut all = Prompts::default();
        for prompts in of.iter().filter_map(|field| self.get(*field)?.prompts.as_ref()) {
            all.join(prompts);
        }
        all
    }

    fn config(&self) -> (Cap, Cap) {
        let stated = |field| match self.get(field).map(|entry| &entry.value) {
            Some(Value::Config { cap, n }) => (*cap, *n),
            _ => (Cap::Absent, Cap::Absent),
        };
        let (one, other) = (stated(Field::Config), stated(Field::ConfigSnake));
        (or(one.0, other.0), or(one.1, other.1))
    }

    /// The facts of a body whose root these are.
    pub(super) fn facts(mut self, api: Api) -> RequestFacts {
        let mut facts = RequestFacts::new(api);
        let (cap, n) = self.config();
        let read = [
            self.number(Field::NewCap),
            self.number(Field::Cap),
            cap,
            self.number(Field::N),
            n,
            self.number(Field::BestOf),
        ];
        facts.unreadable = read.iter().filter(|one| **one == Cap::Unreadable).count() as u64;
        let [new_cap, old_cap, cap, n, inner_n, best_of] = read;
        facts.cap = or(or(new_cap, old_cap), cap);
        facts.n = or(n, inner_n).tokens().unwrap_or(1);
        facts.best_of = best_of.tokens().unwrap_or(1);
        facts.stream = self.flag(Field::Stream).unwrap_or(false);
        facts.include_usage = self.flag(Field::StreamOptions);
        // A root text that is no list of messages becomes one.
        let sums = self.0.iter().filter_map(|entry| entry.sum.as_deref());
        let plain = sums.filter(|sum| sum.messages == 0 && sum.text.total() > 0).count() as u64;

        let mut prompts = match api {
            Api::Rerank => {
                let queries = [Field::Query, Field::Queries, Field::Text1, Field::Data1];
                let documents = [Field::Documents, Field::Text2, Field::Data2, Field::Items];
                self.prompts(&queries).pairs(self.prompts(&documents))
            }
            _ => self.prompts(&[Field::Prompt, Field::Input, Field::Text, Field::Ids]),
        };
        if api == Api::Generate && facts.n > 1 {
            // SGLang runs and counts the prompt for each answer.
            prompts.count = prompts.count.max(1);
            prompts.repeat(core::mem::replace(&mut facts.n, 1));
        }
        let sum = self.sum();
        facts.messages = sum.messages.saturating_add(plain);
        facts.media = sum.media;
        facts.media.merge(&prompts.media);
        facts.text = sum.text;
        facts.text.add(Class::Tools, sum.tools);
        prompts.largest.merge(&facts.text);
        facts.text.merge(&prompts.all);
        facts.prompts = prompts.count.max(1);
        facts.largest = (prompts.count > 1).then_some(prompts.largest);
        facts.token_ids = prompts.ids;
        facts.largest_token_ids = prompts.largest_ids;
        facts.model = self.0.iter_mut().find_map(|entry| match &mut entry.value {
            Value::Name(name) => Some(core::mem::take(name)),
            _ => None,
        });
        facts
    }
}

/// The first, unless it is absent.
fn or(first: Cap, second: Cap) -> Cap {
    if first == Cap::Absent { second } else { first }
}
