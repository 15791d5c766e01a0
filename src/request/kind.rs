//! The kinds of content: what is text, and what has a price of its own.

use super::Media;

/// A kind that a `type` or a MIME type names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Text, or a piece that is made of members that are read.
    Text,
    /// Replayed reasoning, which costs no prompt tokens.
    Reasoning,
    Image,
    Audio,
    Video,
    File,
    Other,
}

/// The kind of a part by its `type` in the OpenAI and Anthropic formats.
const KINDS: [(&[u8], Kind); 39] = [
    (b"text", Kind::Text),
    (b"input_text", Kind::Text),
    (b"output_text", Kind::Text),
    (b"refusal", Kind::Text),
    (b"message", Kind::Text),
    (b"function_call", Kind::Text),
    (b"function_call_output", Kind::Text),
    (b"custom_tool_call", Kind::Text),
    (b"custom_tool_call_output", Kind::Text),
    (b"tool_use", Kind::Text),
    (b"tool_result", Kind::Text),
    (b"server_tool_use", Kind::Text),
    (b"mcp_tool_use", Kind::Text),
    (b"mcp_tool_result", Kind::Text),
    (b"search_result", Kind::Text),
    (b"tool_reference", Kind::Text),
    (b"item_reference", Kind::Text),
    (b"reasoning", Kind::Reasoning),
    (b"thinking", Kind::Reasoning),
    (b"redacted_thinking", Kind::Reasoning),
    (b"image", Kind::Image),
    (b"image_url", Kind::Image),
    (b"input_image", Kind::Image),
    (b"image_embeds", Kind::Image),
    (b"image_pil", Kind::Image),
    (b"computer_screenshot", Kind::Image),
    (b"image_generation_call", Kind::Image),
    (b"audio", Kind::Audio),
    (b"audio_url", Kind::Audio),
    (b"input_audio", Kind::Audio),
    (b"audio_embeds", Kind::Audio),
    (b"video", Kind::Video),
    (b"video_url", Kind::Video),
    (b"input_video", Kind::Video),
    (b"video_embeds", Kind::Video),
    (b"file", Kind::File),
    (b"input_file", Kind::File),
    (b"document", Kind::File),
    (b"container_upload", Kind::File),
];

impl Kind {
    /// The kind that a `type` names, or the kind of file of a MIME type.
    pub(super) fn of(name: &[u8]) -> Self {
        if let Some((_, word)) = KINDS.iter().find(|(known, _)| *known == name) {
            return *word;
        }
        let kinds =
            [(&b"image/"[..], Self::Image), (b"audio/", Self::Audio), (b"video/", Self::Video)];
        let found = kinds.into_iter().find(|(start, _)| name.starts_with(start));
        found.map_or(Self::Other, |(_, word)| word)
    }
}

impl Media {
    /// One more; what has no kind counts as a file.
    pub(super) fn add(&mut self, kind: Kind) {
        let slot = match kind {
            Kind::Image => &mut self.images,
            Kind::Audio => &mut self.audio,
            Kind::Video => &mut self.videos,
            _ => &mut self.files,
        };
        *slot = slot.saturating_add(1);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.images = self.images.saturating_add(other.images);
        self.audio = self.audio.saturating_add(other.audio);
        self.videos = self.videos.saturating_add(other.videos);
        self.files = self.files.saturating_add(other.files);
    }
}
