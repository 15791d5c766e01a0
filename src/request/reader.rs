//! The engine that all formats share: follows a body by a format's grammar.
//!
//! A format says what the members of its objects hold (`member`) and what a
//! closed object amounts to (`close`). The engine keeps one
//! [`Entry`] for each such member of the objects that are open. A member that
//! is repeated starts its entry anew, and an object that closes folds its
//! entries into the one of the member that it is the value of: so the facts
//! are those of a parsed tree, whatever the order of the members.

use super::grammar::{Holds, Place, Row};
use super::kind::Kind;
use super::prompts::Prompts;
use super::value::{Entry, Members, Sum, Value};
use super::{Api, Cap, MODEL_MAX, RequestFacts, lax_integer};
use crate::estimate::{Sampler, Tally};
use crate::json::{Container, Event, NUMBER_MAX, Visitor};

/// An open container that matters.
#[derive(Clone, Copy, Debug)]
enum Frame {
    /// Its entries start at `base`; it is the value of what `at` says.
    Object { place: Place, base: usize, at: Option<At> },
    /// A list whose items are what `At` says.
    List(At),
}

/// What the next value is for.
#[derive(Clone, Copy, Debug)]
struct At {
    holds: Holds,
    /// Its entry.
    slot: usize,
    /// Lists around the value, within the member.
    lists: u8,
}

impl At {
    fn is_prompt(self) -> bool {
        matches!(self.holds, Holds::Prompts(_))
    }
}

/// Where the text of an open string goes.
fn open_text(entry: &mut Entry, at: At) -> &mut Tally {
    if at.is_prompt() { &mut entry.prompts().current } else { &mut entry.sum().text }
}

/// What becomes of the bytes of the open string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Nothing,
    Scalar,
    Text,
    Weight,
}

/// What the events are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Read,
    /// So many containers are open that do not matter.
    Skip(u64),
    /// So many containers are open of JSON that is rendered.
    Weigh(u64),
}

/// Reads one body.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    api: Api,
    members: &'static [&'static [Row]],
    mode: Mode,
    frames: Vec<Frame>,
    entries: Vec<Entry>,
    at: Option<At>,
    target: Target,
    sampler: Sampler,
    scalar: Vec<u8>,
    scalar_long: bool,
    saw_root: bool,
}

impl Reader {
    pub(super) fn new(api: Api) -> Self {
        Self {
            api,
            members: api.members(),
            mode: Mode::Read,
            frames: Vec::new(),
            entries: Vec::new(),
            at: None,
            target: Target::Nothing,
            sampler: Sampler::default(),
            scalar: Vec::new(),
            scalar_long: false,
            saw_root: false,
        }
    }

    pub(super) fn model(&self) -> Option<&[u8]> {
        self.entries.iter().find_map(|entry| match &entry.value {
            Value::Name(name) => Some(name.as_slice()),
            _ => None,
        })
    }

    /// At least the text of the largest prompt that was begun, without what an
    /// object that is still open may yet take back.
    pub(super) fn text_bytes(&self) -> u64 {
        let sure = self.frames.iter().find_map(|frame| match *frame {
            Frame::Object { place, base, .. } if self.api.may_drop(place) => Some(base),
            _ => None,
        });
        let (mut content, mut prompt) = (0_u64, 0);
        for entry in self.entries.iter().take(sure.unwrap_or(usize::MAX)) {
            let text = entry.sum.as_ref().map_or(0, |sum| sum.text.total());
            content = content.saturating_add(text);
            prompt = entry.prompts.as_ref().map_or(0, |prompts| prompts.longest()).max(prompt);
        }
        content.max(prompt)
    }

    /// The facts so far, as if every open container closed here; `None` if
    /// the document is no object.
    #[inline(never)]
    pub(super) fn finish(mut self) -> Option<RequestFacts> {
        if self.target == Target::Text {
            self.end_string();
        }
        while !self.frames.is_empty() {
            self.close();
        }
        self.saw_root.then(|| Members(&mut self.entries).facts(self.api))
    }

    /// The entry of a member of the innermost object, empty.
    #[inline(never)]
    fn member(&mut self, key: &[u8]) -> Option<At> {
        let Some(&Frame::Object { place, base, .. }) = self.frames.last() else { return None };
        let mut rows = self.members.iter().copied().flatten();
        let &Row { field, holds, .. } = rows.find(|row| row.place == place && row.key == key)?;
        let mine = self.entries.get(base..).unwrap_or_default();
        let found = mine.iter().position(|entry| entry.field == field);
        let slot = found.map_or(self.entries.len(), |found| base + found);
        match self.entries.get_mut(slot) {
            Some(entry) => *entry = Entry::new(field),
            None => self.entries.push(Entry::new(field)),
        }
        Some(At { holds, slot, lists: 0 })
    }

    fn set(&mut self, at: At, value: Value) {
        if let Some(entry) = self.entries.get_mut(at.slot) {
            entry.value = value;
        }
    }

    fn sum(&mut self, at: At) -> Option<&mut Sum> {
        self.entries.get_mut(at.slot).map(Entry::sum)
    }

    fn prompts(&mut self, at: At) -> Option<&mut Prompts> {
        self.entries.get_mut(at.slot).map(Entry::prompts)
    }

    #[inline(never)]
    fn begin(&mut self, kind: Container) {
        let list = kind == Container::Array;
        let Some(at) = self.at else {
            if self.frames.is_empty() && !self.saw_root && !list {
                self.saw_root = true;
                return self.open(Place::Root, None);
            }
            self.mode = Mode::Skip(1);
            return;
        };
        match at.holds {
            Holds::Content(shapes) => {
                let place = if at.lists == 0 { shapes.object } else { shapes.objects };
                let may = shapes.texts || shapes.objects.is_some();
                match place {
                    Some(place) if !list => return self.open(place, Some(at)),
                    _ if list && may && at.lists == 0 => {
                        self.sum(at);
                        return self.open_list(at);
                    }
                    _ => {}
                }
            }
            Holds::Prompts(_) if list && at.lists < 2 => return self.open_list(at),
            Holds::Prompts(Some(place)) if !list && at.lists < 2 => {
                return self.open(place, Some(at));
            }
            Holds::Media(_) if list => return self.open_list(at),
            Holds::Media(kind) => self.add_media(at, kind),
            Holds::Json => {
                self.mode = Mode::Weigh(1);
                self.weigh(at, 2);
                return;
            }
            Holds::Anything => self.set(at, Value::Anything),
            Holds::Number => self.set(at, Value::Number(Cap::Unreadable)),
            Holds::Prompts(_) | Holds::Name | Holds::Flag | Holds::Kind => {}
        }
        self.mode = Mode::Skip(1);
    }

    #[inline(never)]
    fn open(&mut self, place: Place, at: Option<At>) {
        self.frames.push(Frame::Object { place, base: self.entries.len(), at });
        self.at = None;
    }

    fn open_list(&mut self, at: At) {
        self.frames.push(Frame::List(at));
        self.at = Some(At { lists: at.lists.saturating_add(1), ..at });
    }

    /// Closes the innermost container that matters.
    #[inline(never)]
    fn close(&mut self) {
        match self.frames.pop() {
            Some(Frame::Object { place, base, at: Some(at) }) => {
                let mine = self.entries.get_mut(base..).unwrap_or_default();
                let closed = self.api.close(place, &mut Members(mine));
                self.entries.truncate(base);
                if let Some(entry) = self.entries.get_mut(at.slot) {
                    entry.take(closed, at.is_prompt());
                }
            }
            Some(Frame::List(at @ At { holds: Holds::Prompts(_), lists, .. })) => {
                if let Some(prompts) = self.prompts(at) {
                    prompts.close_ids(lists > 0);
                }
            }
            Some(Frame::List(at)) if self.sampler.shares() => {
                if let Some(entry) = self.entries.get_mut(at.slot) {
                    self.sampler.finish_prompt(open_text(entry, at));
                }
            }
            _ => {}
        }
        self.at = match self.frames.last() {
            Some(Frame::List(at)) => Some(At { lists: at.lists.saturating_add(1), ..*at }),
            _ => None,
        };
    }

    fn add_media(&mut self, at: At, kind: Kind) {
        if let Some(sum) = self.sum(at) {
            sum.media.add(kind);
        }
    }

    fn weigh(&mut self, at: At, weight: u64) {
        if let Some(sum) = self.sum(at) {
            sum.tools = sum.tools.saturating_add(weight);
        }
    }

    /// Weighs JSON that the chat template renders: text bytes and punctuation.
    /// A key counts up to the scanner's limit; a number or word counts 4.
    #[inline(never)]
    fn weigh_event(&mut self, open: u64, event: Event<'_>) {
        let weight = match event {
            Event::Begin(_) => {
                self.mode = Mode::Weigh(open + 1);
                3
            }
            Event::End => {
                self.mode = if open > 1 { Mode::Weigh(open - 1) } else { Mode::Read };
                return;
            }
            Event::Key(key) => key.len() as u64 + 3,
            Event::StringBegin => 3,
            Event::Text(bytes) => bytes.len() as u64,
            Event::StringEnd => 0,
            Event::Number(_) | Event::LongNumber | Event::Bool(_) | Event::Null => 5,
        };
        if let Some(at) = self.at {
            self.weigh(at, weight);
        }
    }

    #[inline(never)]
    fn begin_string(&mut self) {
        self.scalar.clear();
        self.scalar_long = false;
        let Some(at) = self.at else {
            self.target = Target::Nothing;
            return;
        };
        self.target = match at.holds {
            Holds::Name | Holds::Number | Holds::Kind => Target::Scalar,
            Holds::Content(shapes) if at.lists == 0 && shapes.text => Target::Text,
            Holds::Content(shapes) if at.lists > 0 && shapes.texts => Target::Text,
            Holds::Prompts(_) if at.lists < 2 => Target::Text,
            Holds::Json => Target::Weight,
            Holds::Media(kind) => {
                self.add_media(at, kind);
                Target::Nothing
            }
            Holds::Anything => {
                self.set(at, Value::Anything);
                Target::Nothing
            }
            Holds::Content(_) | Holds::Prompts(_) | Holds::Flag => Target::Nothing,
        };
        match self.target {
            Target::Weight => self.weigh(at, 2),
            // An empty text is there too.
            Target::Text if !at.is_prompt() => _ = self.sum(at),
            _ => {}
        }
    }

    #[inline(never)]
    fn text(&mut self, bytes: &[u8]) {
        let Some(at) = self.at else { return };
        match self.target {
            Target::Text => {
                let Some(entry) = self.entries.get_mut(at.slot) else { return };
                self.sampler.feed(bytes, open_text(entry, at));
            }
            Target::Weight => self.weigh(at, bytes.len() as u64),
            Target::Scalar => {
                let max = if at.holds == Holds::Name { MODEL_MAX } else { NUMBER_MAX };
                let room = max.saturating_sub(self.scalar.len());
                self.scalar_long |= bytes.len() > room;
                self.scalar.extend(bytes.iter().take(room));
            }
            Target::Nothing => {}
        }
    }

    #[inline(never)]
    fn end_string(&mut self) {
        let target = core::mem::replace(&mut self.target, Target::Nothing);
        let Some(at) = self.at else { return };
        match (target, at.holds) {
            (Target::Text, _) => {
                let Some(entry) = self.entries.get_mut(at.slot) else { return };
                if at.is_prompt() {
                    self.sampler.finish_prompt(open_text(entry, at));
                    entry.prompts().close_text();
                } else {
                    self.sampler.finish(open_text(entry, at));
                }
            }
            (Target::Scalar, Holds::Name) => {
                let name = core::mem::take(&mut self.scalar);
                self.set(at, Value::Name(name));
            }
            (Target::Scalar, Holds::Kind) => self.set(at, Value::Kind(Kind::of(&self.scalar))),
            (Target::Scalar, _) => {
                let value = (!self.scalar_long).then(|| lax_integer(&self.scalar, true)).flatten();
                self.set(at, Value::Number(Cap::from(value)));
            }
            _ => {}
        }
    }

    /// A number or a word.
    #[inline(never)]
    fn scalar(&mut self, event: Event<'_>) {
        let Some(at) = self.at else { return };
        let value = match (at.holds, event) {
            (_, Event::Null) => return,
            (Holds::Number, Event::Number(literal)) => {
                Value::Number(Cap::from(lax_integer(literal, false)))
            }
            (Holds::Number, _) => Value::Number(Cap::Unreadable),
            (Holds::Flag, Event::Bool(value)) => Value::Flag(value),
            (Holds::Anything, _) => Value::Anything,
            (Holds::Prompts(_), Event::Number(_) | Event::LongNumber) => {
                if let (Some(prompts), 1..) = (self.prompts(at), at.lists) {
                    prompts.add_id(at.lists > 1);
                }
                return;
            }
            _ => return,
        };
        self.set(at, value);
    }
}

impl Visitor for Reader {
    // The scanner calls it from many places.
    #[inline(never)]
    fn event(&mut self, event: Event<'_>) {
        match self.mode {
            Mode::Read => {}
            Mode::Weigh(open) => return self.weigh_event(open, event),
            Mode::Skip(open) => {
                match event {
                    Event::Begin(_) => self.mode = Mode::Skip(open + 1),
                    Event::End if open > 1 => self.mode = Mode::Skip(open - 1),
                    Event::End => self.mode = Mode::Read,
                    _ => {}
                }
                return;
            }
        }
        match event {
            Event::Key(key) => self.at = self.member(key),
            Event::Begin(kind) => self.begin(kind),
            Event::End => self.close(),
            Event::StringBegin => self.begin_string(),
            Event::Text(bytes) => self.text(bytes),
            Event::StringEnd => self.end_string(),
            Event::Number(_) | Event::LongNumber | Event::Bool(_) | Event::Null => {
                self.scalar(event);
            }
        }
    }
}
