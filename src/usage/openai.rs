//! `usage` of OpenAI chat and text completions, and of vLLM and SGLang, which
//! answer alike: <https://platform.openai.com/docs/api-reference/chat/object>.

use super::Usage;
use crate::json::{Container, Event, Visitor};
use crate::request::lax_integer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Before,
    Root,
    Usage,
    InputDetails,
    OutputDetails,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Usage,
    Input,
    Output,
    InputDetails,
    OutputDetails,
    Cached,
    Reasoning,
}

/// Reads one JSON document.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    place: Place,
    /// Open containers that do not matter.
    skipped: u64,
    field: Option<Field>,
    usage: Option<Usage>,
}

impl Default for Reader {
    fn default() -> Self {
        Self { place: Place::Before, skipped: 0, field: None, usage: None }
    }
}

impl Reader {
    /// The document's usage; `None` if absent or `null`.
    pub(super) fn usage(&self) -> Option<Usage> {
        self.usage
    }

    fn key(&mut self, key: &[u8]) {
        self.field = match (self.place, key) {
            (Place::Root, b"usage") => Some(Field::Usage),
            (Place::Usage, b"prompt_tokens") => Some(Field::Input),
            (Place::Usage, b"completion_tokens") => Some(Field::Output),
            (Place::Usage, b"prompt_tokens_details") => Some(Field::InputDetails),
            (Place::Usage, b"completion_tokens_details") => Some(Field::OutputDetails),
            (Place::InputDetails, b"cached_tokens") => Some(Field::Cached),
            (Place::OutputDetails, b"reasoning_tokens") => Some(Field::Reasoning),
            _ => None,
        };
        // The last duplicate wins: a repeated key takes back the earlier value.
        match self.field {
            Some(Field::Usage) => self.usage = None,
            Some(field) => self.set(field, None),
            None => {}
        }
    }

    fn set(&mut self, field: Field, value: Option<u64>) {
        let Some(usage) = &mut self.usage else { return };
        match field {
            Field::Input => usage.input = value,
            Field::Output => usage.output = value,
            Field::InputDetails | Field::Cached => usage.cached = value,
            Field::OutputDetails | Field::Reasoning => usage.reasoning = value,
            Field::Usage => {}
        }
    }

    fn begin(&mut self, kind: Container) {
        let object = kind == Container::Object;
        self.place = match (self.place, self.field) {
            (Place::Before, _) if object => Place::Root,
            (Place::Root, Some(Field::Usage)) if object => {
                self.usage = Some(Usage::default());
                Place::Usage
            }
            (Place::Usage, Some(Field::InputDetails)) if object => Place::InputDetails,
            (Place::Usage, Some(Field::OutputDetails)) if object => Place::OutputDetails,
            (place, _) => {
                self.skipped = 1;
                place
            }
        };
    }

    fn end(&mut self) {
        self.place = match self.place {
            Place::InputDetails | Place::OutputDetails => Place::Usage,
            Place::Usage => Place::Root,
            Place::Root | Place::Before => Place::Before,
        };
    }
}

impl Visitor for Reader {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Begin(_) if self.skipped > 0 => self.skipped += 1,
            Event::End if self.skipped > 0 => self.skipped -= 1,
            _ if self.skipped > 0 => {}
            Event::Key(key) => self.key(key),
            Event::Begin(kind) => self.begin(kind),
            Event::End => self.end(),
            Event::Number(literal) => {
                if let Some(field) = self.field {
                    // `prompt_tokens_details: 5` is no count of anything.
                    if !matches!(field, Field::InputDetails | Field::OutputDetails) {
                        self.set(field, lax_integer(literal, false));
                    }
                }
            }
            _ => {}
        }
    }
}
