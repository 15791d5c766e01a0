//! OpenAI chat and text completions.
//!
//! Sources: <https://platform.openai.com/docs/api-reference/chat/create>,
//! <https://platform.openai.com/docs/api-reference/completions/create>, and
//! vLLM's `entrypoints/openai/protocol.py`.

use super::{Api, Cap, MODEL_MAX, RequestFacts, lax_integer};
use crate::estimate::{Class, Sampler, Tally};
use crate::json::{Container, Event, NUMBER_MAX, Visitor};

/// An open container whose members matter. All others are skipped or weighed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Root,
    Messages,
    Message,
    Parts,
    Part,
    Prompts,
    /// An array of token ids inside the array of prompts.
    TokenIds,
    StreamOptions,
}

/// A member whose value matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Model,
    Messages,
    Prompt,
    Cap,
    NewCap,
    N,
    BestOf,
    Stream,
    StreamOptions,
    IncludeUsage,
    Tools,
    Content,
    ToolCalls,
    Text,
}

/// What the string being read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Nothing,
    Prompt,
    Content,
    Part,
    Scalar(Field),
}

/// `Root > Messages > Message > Parts > Part`
const PLACES: usize = 5;

#[derive(Clone, Debug)]
pub(super) struct Reader {
    api: Api,
    /// The open places, the innermost last.
    places: [Option<Place>; PLACES],
    open: usize,
    /// Open containers below the innermost place that do not matter.
    skipped: u64,
    /// Open containers of the value being weighed.
    weighed: u64,
    field: Option<Field>,
    target: Target,
    sampler: Sampler,
    scalar: Vec<u8>,
    scalar_long: bool,

    saw_root: bool,
    model: Option<Vec<u8>>,
    /// `n` and `best_of` are read by the same rules as the caps.
    cap: Cap,
    new_cap: Cap,
    n: Cap,
    best_of: Cap,
    stream: bool,
    include_usage: Option<bool>,
    messages: u64,
    /// Text of the closed messages, or of the closed prompts.
    text: Tally,
    tools: u64,
    calls: u64,
    content: Tally,
    part: Tally,
    message_calls: u64,
    /// Parts of the open message, and of the closed ones, that are not text.
    message_opaque: u64,
    opaque: u64,
    weight: u64,
    prompts: Prompts,
}

/// The prompts of a text completion.
#[derive(Clone, Debug, Default)]
struct Prompts {
    count: u64,
    all: Tally,
    current: Tally,
    largest: Tally,
    ids: u64,
    current_ids: u64,
    largest_ids: u64,
    /// Ids that stand in the outer array form one prompt.
    loose_ids: u64,
}

impl Prompts {
    fn close_text(&mut self) {
        let text = core::mem::take(&mut self.current);
        self.count += 1;
        self.all.merge(&text);
        if text.total() > self.largest.total() {
            self.largest = text;
        }
    }

    fn close_ids(&mut self) {
        let ids = core::mem::take(&mut self.current_ids);
        self.count += 1;
        self.ids += ids;
        self.largest_ids = self.largest_ids.max(ids);
    }
}

impl Reader {
    pub(super) fn new(api: Api) -> Self {
        Self {
            api,
            places: [None; PLACES],
            open: 0,
            skipped: 0,
            weighed: 0,
            field: None,
            target: Target::Nothing,
            sampler: Sampler::default(),
            scalar: Vec::new(),
            scalar_long: false,
            saw_root: false,
            model: None,
            cap: Cap::Absent,
            new_cap: Cap::Absent,
            n: Cap::Absent,
            best_of: Cap::Absent,
            stream: false,
            include_usage: None,
            messages: 0,
            text: Tally::default(),
            tools: 0,
            calls: 0,
            content: Tally::default(),
            part: Tally::default(),
            message_calls: 0,
            message_opaque: 0,
            opaque: 0,
            weight: 0,
            prompts: Prompts::default(),
        }
    }

    pub(super) fn model(&self) -> Option<&[u8]> {
        self.model.as_deref()
    }

    pub(super) fn text_bytes(&self) -> u64 {
        let prompts = self.prompts.largest.total().max(self.prompts.current.total());
        let chat = [&self.text, &self.content, &self.part];
        chat.iter().fold(prompts, |sum, tally| sum.saturating_add(tally.total()))
    }

    /// The facts so far, as if every open container closed here; `None` if
    /// the document is no object.
    pub(super) fn finish(mut self) -> Option<RequestFacts> {
        match self.target {
            Target::Content | Target::Part | Target::Prompt => self.event(Event::StringEnd),
            _ => {}
        }
        if self.weighed > 0 {
            self.weighed = 0;
            self.end_weighed();
        }
        while let Some(place) = self.place() {
            self.leave(place);
        }
        if !self.saw_root {
            return None;
        }
        let mut facts = RequestFacts::new(self.api);
        facts.model = self.model;
        facts.stream = self.stream;
        facts.include_usage = self.include_usage;
        let read = [self.cap, self.new_cap, self.n, self.best_of];
        facts.unreadable = read.iter().filter(|one| **one == Cap::Unreadable).count() as u64;
        facts.cap = if self.new_cap == Cap::Absent { self.cap } else { self.new_cap };
        facts.n = self.n.tokens().unwrap_or(1);
        facts.best_of = self.best_of.tokens().unwrap_or(1);
        match self.api {
            Api::Chat => {
                facts.messages = self.messages;
                facts.media.files = self.opaque;
                facts.text = self.text;
                facts.text.add(Class::Tools, self.tools.saturating_add(self.calls));
            }
            _ => {
                let prompts = self.prompts;
                facts.prompts = prompts.count.max(1);
                facts.text = prompts.all;
                facts.largest = (prompts.count > 1).then_some(prompts.largest);
                facts.token_ids = prompts.ids;
                facts.largest_token_ids = prompts.largest_ids;
            }
        }
        Some(facts)
    }

    fn place(&self) -> Option<Place> {
        self.places.get(self.open.checked_sub(1)?).copied().flatten()
    }

    fn enter(&mut self, place: Place) {
        if let Some(slot) = self.places.get_mut(self.open) {
            *slot = Some(place);
            self.open += 1;
        }
        match place {
            Place::Root => self.saw_root = true,
            Place::Message => {
                self.messages += 1;
                self.message_calls = 0;
                self.message_opaque = 0;
            }
            _ => {}
        }
        self.field = None;
    }

    fn leave(&mut self, place: Place) {
        self.open -= 1;
        self.field = None;
        if let Some(slot) = self.places.get_mut(self.open) {
            *slot = None;
        }
        match place {
            Place::Part => {
                let part = core::mem::take(&mut self.part);
                self.message_opaque += u64::from(part.total() == 0);
                self.content.merge(&part);
            }
            Place::Message => {
                self.text.merge(&core::mem::take(&mut self.content));
                self.calls = self.calls.saturating_add(self.message_calls);
                self.opaque += self.message_opaque;
            }
            Place::TokenIds => self.prompts.close_ids(),
            Place::Prompts if self.prompts.loose_ids > 0 => {
                self.prompts.current_ids = core::mem::take(&mut self.prompts.loose_ids);
                self.prompts.close_ids();
            }
            _ => {}
        }
    }

    fn field_of(&self, place: Place, key: &[u8]) -> Option<Field> {
        let chat = self.api == Api::Chat;
        Some(match (place, key) {
            (Place::Root, b"model") => Field::Model,
            (Place::Root, b"messages") if chat => Field::Messages,
            (Place::Root, b"tools") if chat => Field::Tools,
            (Place::Root, b"max_completion_tokens") if chat => Field::NewCap,
            (Place::Root, b"prompt") if !chat => Field::Prompt,
            (Place::Root, b"max_tokens") => Field::Cap,
            (Place::Root, b"n") => Field::N,
            (Place::Root, b"best_of") => Field::BestOf,
            (Place::Root, b"stream") => Field::Stream,
            (Place::Root, b"stream_options") => Field::StreamOptions,
            (Place::StreamOptions, b"include_usage") => Field::IncludeUsage,
            (Place::Message, b"content") => Field::Content,
            (Place::Message, b"tool_calls") => Field::ToolCalls,
            (Place::Part, b"text") => Field::Text,
            _ => return None,
        })
    }

    /// The last duplicate wins: a repeated key takes back what the earlier gave.
    fn forget(&mut self, field: Field) {
        match field {
            Field::Model => self.model = None,
            Field::Messages => {
                self.messages = 0;
                self.calls = 0;
                self.opaque = 0;
                self.text = Tally::default();
            }
            Field::Prompt => self.prompts = Prompts::default(),
            Field::Cap => self.cap = Cap::Absent,
            Field::NewCap => self.new_cap = Cap::Absent,
            Field::N => self.n = Cap::Absent,
            Field::BestOf => self.best_of = Cap::Absent,
            Field::Stream => self.stream = false,
            Field::StreamOptions | Field::IncludeUsage => self.include_usage = None,
            Field::Tools => self.tools = 0,
            Field::Content => {
                self.content = Tally::default();
                self.message_opaque = 0;
            }
            Field::ToolCalls => self.message_calls = 0,
            Field::Text => self.part = Tally::default(),
        }
    }

    fn begin(&mut self, kind: Container) {
        let next = match (self.place(), self.field, kind) {
            (None, _, Container::Object) => Place::Root,
            (Some(Place::Root), Some(Field::Messages), Container::Array) => Place::Messages,
            (Some(Place::Root), Some(Field::Prompt), Container::Array) => Place::Prompts,
            (Some(Place::Root), Some(Field::StreamOptions), Container::Object) => {
                Place::StreamOptions
            }
            (Some(Place::Messages), _, Container::Object) => Place::Message,
            (Some(Place::Message), Some(Field::Content), Container::Array) => Place::Parts,
            (Some(Place::Parts), _, Container::Object) => Place::Part,
            (Some(Place::Prompts), _, Container::Array) => Place::TokenIds,
            (_, Some(Field::Tools | Field::ToolCalls), _) => {
                self.weighed = 1;
                self.weight = 2;
                return;
            }
            _ => {
                self.skipped = 1;
                return;
            }
        };
        self.enter(next);
    }

    /// Weighs JSON that the chat template renders: text bytes and punctuation.
    /// A key counts up to the scanner's limit; a number or word counts 4.
    fn weigh(&mut self, event: Event<'_>) {
        let weight = match event {
            Event::Begin(_) => {
                self.weighed += 1;
                3
            }
            Event::End => {
                self.weighed -= 1;
                if self.weighed == 0 {
                    self.end_weighed();
                }
                return;
            }
            Event::Key(key) => key.len() as u64 + 3,
            Event::StringBegin => 3,
            Event::Text(bytes) => bytes.len() as u64,
            Event::StringEnd => 0,
            Event::Number(_) | Event::LongNumber | Event::Bool(_) | Event::Null => 5,
        };
        self.weight = self.weight.saturating_add(weight);
    }

    fn end_weighed(&mut self) {
        match self.field {
            Some(Field::ToolCalls) => self.message_calls = self.weight,
            _ => self.tools = self.weight,
        }
    }

    fn string_target(&self) -> Target {
        match (self.place(), self.field) {
            (Some(Place::Root), Some(Field::Prompt)) | (Some(Place::Prompts), _) => Target::Prompt,
            // vLLM also takes plain strings as parts.
            (Some(Place::Message), Some(Field::Content)) | (Some(Place::Parts), _) => {
                Target::Content
            }
            (Some(Place::Part), Some(Field::Text)) => Target::Part,
            (
                Some(Place::Root),
                Some(
                    field @ (Field::Model | Field::Cap | Field::NewCap | Field::N | Field::BestOf),
                ),
            ) => Target::Scalar(field),
            _ => Target::Nothing,
        }
    }

    fn text(&mut self, bytes: &[u8]) {
        match self.target {
            Target::Prompt => self.sampler.feed(bytes, &mut self.prompts.current),
            Target::Content => self.sampler.feed(bytes, &mut self.content),
            Target::Part => self.sampler.feed(bytes, &mut self.part),
            Target::Scalar(field) => {
                let max = if field == Field::Model { MODEL_MAX } else { NUMBER_MAX };
                let room = max.saturating_sub(self.scalar.len());
                self.scalar_long |= bytes.len() > room;
                self.scalar.extend(bytes.iter().take(room));
            }
            Target::Nothing => {}
        }
    }

    fn end_string(&mut self) {
        match core::mem::replace(&mut self.target, Target::Nothing) {
            Target::Prompt => {
                self.sampler.finish(&mut self.prompts.current);
                self.prompts.close_text();
            }
            Target::Content => self.sampler.finish(&mut self.content),
            Target::Part => self.sampler.finish(&mut self.part),
            Target::Scalar(Field::Model) => self.model = Some(core::mem::take(&mut self.scalar)),
            Target::Scalar(field) => {
                let value = (!self.scalar_long).then(|| lax_integer(&self.scalar, true)).flatten();
                self.number(field, value);
            }
            Target::Nothing => {}
        }
    }

    fn number(&mut self, field: Field, value: Option<u64>) {
        let value = Cap::from(value);
        match field {
            Field::Cap => self.cap = value,
            Field::NewCap => self.new_cap = value,
            Field::N => self.n = value,
            Field::BestOf => self.best_of = value,
            _ => {}
        }
    }

    fn scalar(&mut self, event: Event<'_>) {
        let (place, field) = (self.place(), self.field);
        if matches!(event, Event::Number(_) | Event::LongNumber) {
            match place {
                Some(Place::TokenIds) => self.prompts.current_ids += 1,
                Some(Place::Prompts) => self.prompts.loose_ids += 1,
                _ => {}
            }
        }
        let Some(field) = field else { return };
        match (event, field) {
            (Event::Number(literal), _) => self.number(field, lax_integer(literal, false)),
            (Event::LongNumber, _) => self.number(field, None),
            (Event::Bool(value), Field::Stream) => self.stream = value,
            (Event::Bool(value), Field::IncludeUsage) => self.include_usage = Some(value),
            (Event::Bool(_), _) => self.number(field, None),
            _ => {}
        }
    }
}

impl Visitor for Reader {
    fn event(&mut self, event: Event<'_>) {
        if self.weighed > 0 {
            return self.weigh(event);
        }
        if self.skipped > 0 {
            match event {
                Event::Begin(_) => self.skipped += 1,
                Event::End => self.skipped -= 1,
                _ => {}
            }
            // A cap that is a container was there but cannot be read.
            if let (0, Some(field)) = (self.skipped, self.field) {
                self.number(field, None);
            }
            return;
        }
        match event {
            Event::Key(key) => {
                self.field = self.place().and_then(|place| self.field_of(place, key));
                if let Some(field) = self.field {
                    self.forget(field);
                }
            }
            Event::Begin(kind) => self.begin(kind),
            Event::End => {
                if let Some(place) = self.place() {
                    self.leave(place);
                }
            }
            Event::StringBegin => {
                self.scalar.clear();
                self.scalar_long = false;
                self.target = self.string_target();
            }
            Event::Text(bytes) => self.text(bytes),
            Event::StringEnd => self.end_string(),
            Event::Number(_) | Event::LongNumber | Event::Bool(_) | Event::Null => {
                self.scalar(event);
            }
        }
    }
}
