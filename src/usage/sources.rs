//! One answer may state its usage in several places.

use super::Usage;

/// What the sources of one answer say together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Each number as the first source that states it has it; `None` if no
    /// source states anything.
    pub usage: Option<Usage>,
    /// Two sources state the same number differently.
    pub disagreed: bool,
}

/// Merges sources, the most trusted first.
pub fn merge(sources: impl IntoIterator<Item = Usage>) -> Merged {
    let mut merged = Merged::default();
    for source in sources {
        let usage = merged.usage.get_or_insert_default();
        for (known, other) in [
            (&mut usage.input, source.input),
            (&mut usage.cached, source.cached),
            (&mut usage.output, source.output),
            (&mut usage.reasoning, source.reasoning),
        ] {
            merged.disagreed |= known.zip(other).is_some_and(|(known, other)| known != other);
            *known = known.or(other);
        }
    }
    merged
}

impl Usage {
    /// Usage from a serialized `envoy.data.ai.v3.TokenUsage`, which Envoy's AI
    /// Protocol Manager publishes; `None` if the bytes are no such message or
    /// state no number.
    pub fn from_token_usage(bytes: &[u8]) -> Option<Self> {
        let mut usage = Self::default();
        read_message(bytes, |field, bytes| {
            match field {
                3 => usage.input = Some(count(bytes)?),
                4 => usage.output = Some(count(bytes)?),
                6 => first_count(bytes, &mut usage.cached)?,
                7 => first_count(bytes, &mut usage.reasoning)?,
                _ => {}
            }
            Some(())
        })?;
        (usage != Self::default()).then_some(usage)
    }
}

/// Reads the first field of a message of counts, if it is there.
fn first_count(bytes: &[u8], first: &mut Option<u64>) -> Option<()> {
    read_message(bytes, |field, bytes| {
        if field == 1 {
            *first = Some(count(bytes)?);
        }
        Some(())
    })
}

/// A `google.protobuf.UInt64Value`; one without content is 0.
fn count(bytes: &[u8]) -> Option<u64> {
    match bytes.split_first() {
        None => Some(0),
        Some((&0x08, mut rest)) => {
            let value = varint(&mut rest)?;
            rest.is_empty().then_some(value)
        }
        Some(_) => None,
    }
}

/// Calls `visit` with the number and the bytes of each field that is itself a
/// message; `None` if the bytes are no protobuf, or `visit` says so.
fn read_message(mut bytes: &[u8], mut visit: impl FnMut(u64, &[u8]) -> Option<()>) -> Option<()> {
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let skip = match tag & 7 {
            0 => {
                varint(&mut bytes)?;
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (field, rest) = bytes.split_at_checked(skip)?;
        if tag & 7 == 2 {
            visit(tag >> 3, field)?;
        }
        bytes = rest;
    }
    Some(())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As Envoy 1.40.0 publishes it for 70 prompt tokens, 5 of them cached, and
    /// 2 generated ones.
    const TOKEN_USAGE: &[u8] =
        b"\x08\x01\x1a\x02\x08F\"\x02\x08\x02*\x02\x08H2\x04\n\x02\x08\x05H\x01";

    #[test]
    fn usage_from_envoys_metadata() {
        let stated = Usage { input: Some(70), cached: Some(5), output: Some(2), reasoning: None };
        assert_eq!(Usage::from_token_usage(TOKEN_USAGE), Some(stated));
        // Large and zero counts, and reasoning.
        let odd = b"\x1a\x04\x08\xac\x9e\x04\x22\x00\x3a\x04\x0a\x02\x08\x07";
        let stated =
            Usage { input: Some(69_420), output: Some(0), reasoning: Some(7), ..Usage::default() };
        assert_eq!(Usage::from_token_usage(odd), Some(stated));
        assert_eq!(Usage::from_token_usage(b"\x08\x01H\x03"), None, "it failed to read the answer");
        assert_eq!(Usage::from_token_usage(b"\x1a\x02\x08"), None, "cut off");
        assert_eq!(Usage::from_token_usage(b"\x1b"), None, "a group");
    }

    fn usage(input: Option<u64>, output: Option<u64>) -> Usage {
        Usage { input, output, ..Usage::default() }
    }

    #[test]
    fn the_first_source_that_states_a_number_wins() {
        assert_eq!(merge([]), Merged::default());
        let agreed = merge([usage(Some(7), None), usage(Some(7), Some(2)), usage(None, Some(2))]);
        assert_eq!(agreed, Merged { usage: Some(usage(Some(7), Some(2))), disagreed: false });
        let different = merge([usage(None, Some(3)), usage(Some(7), Some(2))]);
        assert_eq!(different, Merged { usage: Some(usage(Some(7), Some(3))), disagreed: true });
        // What states nothing is still a source that was there.
        assert_eq!(merge([Usage::default()]).usage, Some(Usage::default()));
        let cached = Usage { cached: Some(1), reasoning: Some(1), ..Usage::default() };
        assert_eq!(merge([usage(None, None), cached]).usage, Some(cached));
    }

    proptest! {
        #[test]
        fn no_metadata_makes_it_panic(bytes in any::<Vec<u8>>(), cut in 0..=TOKEN_USAGE.len()) {
            Usage::from_token_usage(&bytes);
            Usage::from_token_usage(&[&TOKEN_USAGE[..cut], &bytes].concat());
        }

        #[test]
        fn sources_disagree_where_a_field_has_two_values(
            sources in prop::collection::vec(prop::array::uniform4(prop::option::of(0_u64..3)).prop_map(
                |[input, cached, output, reasoning]| Usage { input, cached, output, reasoning },
            ), 0..4),
        ) {
            let fields: [fn(&Usage) -> Option<u64>; 4] =
                [|u| u.input, |u| u.cached, |u| u.output, |u| u.reasoning];
            let merged = merge(sources.iter().copied());
            let mut differ = false;
            for field in fields {
                let mut stated = sources.iter().filter_map(field);
                let first = stated.next();
                prop_assert_eq!(field(&merged.usage.unwrap_or_default()), first);
                differ |= stated.any(|other| Some(other) != first);
            }
            prop_assert_eq!(merged.disagreed, differ);
        }
    }
}
