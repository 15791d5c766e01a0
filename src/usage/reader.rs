//! Reads what one document of an answer states: a JSON answer, one of a list
//! of such, or one event of a stream.

use super::total::Total;
use super::{anthropic, gemini, openai, sglang};
use crate::json::{Container, Event, Visitor};
use crate::request::{Api, lax_integer};

/// The numbers that answers state. Each stands at one path of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Counter {
    Input,
    Output,
    Total,
    Cached,
    CacheWrites,
    ToolInput,
    Reasoning,
    /// Cohere's `meta.tokens` and `meta.billed_units`.
    MetaInput,
    MetaOutput,
    BilledInput,
    BilledOutput,
    /// Which of several prompts the document is about.
    Index,
}

const COUNTERS: usize = 12;

/// The paths at which a document can say why a sequence stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Stop {
    /// In one of several choices.
    Choice = COUNTERS as u8,
    Root,
    Inner,
}

/// A container whose members matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A list of documents.
    List,
    Root,
    /// The answer that an event carries.
    Carried,
    Usage,
    InputDetails,
    OutputDetails,
    /// SGLang's numbers, with the reason for the end among them.
    MetaInfo,
    /// Cohere's.
    Meta,
    MetaTokens,
    MetaBilled,
    Choices,
    Choice,
    /// An object that says why a sequence stopped.
    Ending,
}

impl Place {
    /// What stands below, as a set of numbers of counters and stops.
    fn below(self) -> u16 {
        const fn set(counters: &[Counter]) -> u16 {
            match counters {
                [first, rest @ ..] => 1 << *first as u8 | set(rest),
                [] => 0,
            }
        }
        use Counter as C;
        let usage = set(&[
            C::Input,
            C::Output,
            C::Total,
            C::Cached,
            C::CacheWrites,
            C::ToolInput,
            C::Reasoning,
        ]);
        match self {
            Self::List | Self::Root | Self::Carried => u16::MAX,
            Self::Usage => usage,
            Self::MetaInfo => usage | 1 << Stop::Inner as u8,
            Self::InputDetails => set(&[C::Cached]),
            Self::OutputDetails => set(&[C::Reasoning]),
            Self::Meta => set(&[C::MetaInput, C::MetaOutput, C::BilledInput, C::BilledOutput]),
            Self::MetaTokens => set(&[C::MetaInput, C::MetaOutput]),
            Self::MetaBilled => set(&[C::BilledInput, C::BilledOutput]),
            Self::Choices | Self::Choice => 1 << Stop::Choice as u8,
            Self::Ending => 1 << Stop::Inner as u8,
        }
    }
}

/// What a member holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Into(Place),
    Count(Counter),
    Stop(Stop),
}

/// What one document states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    counts: [Option<u64>; COUNTERS],
    stops: u16,
}

impl Reading {
    pub(super) fn get(&self, counter: Counter) -> Option<u64> {
        self.counts.get(counter as usize).copied().flatten()
    }

    pub(super) fn set(&mut self, counter: Counter, value: Option<u64>) {
        if let Some(slot) = self.counts.get_mut(counter as usize) {
            *slot = value;
        }
    }

    /// Whether a sequence met its limit of tokens.
    pub(super) fn stopped(&self) -> bool {
        self.stops != 0
    }

    /// Takes what the other states, and for the rest keeps this.
    pub(super) fn merge(&mut self, later: &Self) {
        for (mine, later) in self.counts.iter_mut().zip(later.counts) {
            *mine = later.or(*mine);
        }
    }

    /// Adds what the other states; what one of the two does not state is not known.
    pub(super) fn add(&mut self, other: &Self) {
        for (mine, other) in self.counts.iter_mut().zip(other.counts) {
            *mine = mine.zip(other).map(|(one, other)| one.saturating_add(other));
        }
    }

    fn forget(&mut self, below: u16) {
        for (at, slot) in self.counts.iter_mut().enumerate() {
            if below >> at & 1 == 1 {
                *slot = None;
            }
        }
        self.stops &= !below;
    }
}

/// A member that matters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    place: Place,
    key: &'static [u8],
    step: Step,
}

/// The member `key` of the objects at `place`.
pub(super) const fn row(place: Place, key: &'static str, step: Step) -> Row {
    Row { place, key: key.as_bytes(), step }
}

/// How formats word that a sequence met its limit of tokens.
fn is_limit(reason: &[u8]) -> bool {
    matches!(
        reason,
        b"length"
            | b"max_tokens"
            | b"model_context_window_exceeded"
            | b"MAX_TOKENS"
            | b"max_output_tokens"
    )
}

/// Longer than any reason that matters.
const REASON_MAX: usize = 32;
/// `List > Root > Carried > Usage > InputDetails`, and one more.
const PLACES: usize = 6;

/// Reads one document after the other.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    members: &'static [Row],
    /// The open containers that matter.
    places: [Place; PLACES],
    open: usize,
    /// Open containers that do not matter.
    skipped: u64,
    step: Option<Step>,
    /// What the document states itself, and in the answer that it carries.
    outer: Reading,
    carried: Reading,
    in_carried: bool,
    /// The open choice met its limit.
    choice: bool,
    reason: [u8; REASON_MAX],
    reason_len: usize,
    /// The answer may be a list of documents.
    lists: bool,
    /// What all documents so far stated.
    pub(super) total: Total,
}

impl Reader {
    /// For one document, a list of such where the format has it, or for the
    /// events of a stream.
    pub(super) fn new(api: Api, stream: bool) -> Self {
        Self {
            members: match api {
                Api::Responses => openai::RESPONSE,
                Api::Messages => anthropic::MEMBERS,
                Api::Gemini => gemini::MEMBERS,
                Api::Generate => sglang::MEMBERS,
                _ => openai::COMPLETION,
            },
            lists: !stream && matches!(api, Api::Gemini | Api::Generate),
            total: Total::new(api),
            places: [Place::Root; PLACES],
            open: 0,
            skipped: 0,
            step: None,
            outer: Reading::default(),
            carried: Reading::default(),
            in_carried: false,
            choice: false,
            reason: [0; REASON_MAX],
            reason_len: 0,
        }
    }

    /// Ends a document, and adds up what it stated if it was valid.
    #[inline(never)]
    pub(super) fn end_document(&mut self, valid: bool) {
        let stated = self.state();
        if valid {
            self.total.add(&stated);
        }
        (self.open, self.skipped, self.step, self.in_carried) = (0, 0, None, false);
    }

    /// What was stated since.
    fn state(&mut self) -> [Reading; 2] {
        [core::mem::take(&mut self.outer), core::mem::take(&mut self.carried)]
    }

    fn member(&self, key: &[u8]) -> Option<Step> {
        let place = self.place()?;
        self.members.iter().find(|row| row.place == place && row.key == key).map(|row| row.step)
    }

    fn place(&self) -> Option<Place> {
        self.places.get(self.open.checked_sub(1)?).copied()
    }

    fn reading(&mut self) -> &mut Reading {
        if self.in_carried { &mut self.carried } else { &mut self.outer }
    }

    /// The last duplicate wins: a repeated key takes back what the earlier gave.
    #[inline(never)]
    fn key(&mut self, key: &[u8]) {
        self.step = self.member(key);
        match self.step {
            Some(Step::Into(Place::Carried)) => self.carried = Reading::default(),
            Some(Step::Into(place)) => self.reading().forget(place.below()),
            Some(Step::Count(counter)) => self.reading().set(counter, None),
            Some(Step::Stop(Stop::Choice)) => self.choice = false,
            Some(Step::Stop(stop)) => self.reading().forget(1 << stop as u8),
            None => {}
        }
    }

    #[inline(never)]
    fn begin(&mut self, kind: Container) {
        let object = kind == Container::Object;
        let next = match (self.place(), self.step) {
            (None | Some(Place::List), _) if object => Some(Place::Root),
            (None, _) if self.lists => Some(Place::List),
            (Some(Place::Choices), _) if object => Some(Place::Choice),
            (_, Some(Step::Into(place))) if object == (place != Place::Choices) => Some(place),
            _ => None,
        };
        let slot = next.and_then(|_| self.places.get_mut(self.open));
        let (Some(place), Some(slot)) = (next, slot) else {
            self.skipped = 1;
            return;
        };
        *slot = place;
        self.open += 1;
        self.step = None;
        self.in_carried |= place == Place::Carried;
        self.choice = false;
    }

    /// The place that closes.
    #[inline(never)]
    fn end(&mut self) -> Option<Place> {
        let place = self.place()?;
        self.open -= 1;
        self.step = None;
        match place {
            Place::Carried => self.in_carried = false,
            Place::Choice if self.choice => self.reading().stops |= 1 << Stop::Choice as u8,
            _ => {}
        }
        Some(place)
    }

    #[inline(never)]
    fn end_string(&mut self) {
        let Some(Step::Stop(stop)) = self.step else { return };
        if self.reason.get(..self.reason_len).is_some_and(is_limit) {
            match stop {
                Stop::Choice => self.choice = true,
                _ => self.reading().stops |= 1 << stop as u8,
            }
        }
    }

    /// Reads the event; true if it ended a document of a list.
    #[inline(never)] // the scanner calls it from many places
    fn read(&mut self, event: Event<'_>) -> bool {
        match event {
            Event::Begin(_) if self.skipped > 0 => self.skipped += 1,
            Event::End if self.skipped > 0 => self.skipped -= 1,
            _ if self.skipped > 0 => {}
            Event::Key(key) => self.key(key),
            Event::Begin(kind) => self.begin(kind),
            Event::End => return self.end() == Some(Place::Root) && self.open > 0,
            Event::Number(literal) => {
                if let Some(Step::Count(counter)) = self.step {
                    self.reading().set(counter, lax_integer(literal, false));
                }
            }
            Event::StringBegin => self.reason_len = 0,
            Event::Text(bytes) if matches!(self.step, Some(Step::Stop(_))) => {
                for byte in bytes {
                    // A longer one fills the whole length, which none that matters has.
                    if let Some(slot) = self.reason.get_mut(self.reason_len) {
                        *slot = *byte;
                        self.reason_len += 1;
                    }
                }
            }
            Event::StringEnd => self.end_string(),
            _ => {}
        }
        false
    }
}

impl Visitor for Reader {
    fn event(&mut self, event: Event<'_>) {
        if self.read(event) {
            let stated = self.state();
            self.total.add_item(&stated);
        }
    }
}
