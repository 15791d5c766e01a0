//! Reranking and scoring: a query, or several, and documents.
//!
//! Sources: vLLM's `entrypoints/pooling/scoring/protocol.py`;
//! <https://docs.cohere.com/reference/rerank>; <https://api.jina.ai/redoc>.

use super::grammar::{Holds, Place, Row, TEXT, row, text_or_list};
use super::kind::Kind;
use super::value::Field;

/// A list, or a single one.
const LIST: Holds = Holds::Prompts(Some(Place::Message));

pub(super) const MEMBERS: &[Row] = &[
    row(Place::Root, "model", Field::Model, Holds::Name),
    row(Place::Root, "query", Field::Query, LIST),
    row(Place::Root, "documents", Field::Documents, LIST),
    row(Place::Root, "text_1", Field::Text1, LIST),
    row(Place::Root, "text_2", Field::Text2, LIST),
    row(Place::Root, "data_1", Field::Data1, LIST),
    row(Place::Root, "data_2", Field::Data2, LIST),
    row(Place::Root, "queries", Field::Queries, LIST),
    row(Place::Root, "items", Field::Items, LIST),
    // A document: Cohere's and Jina's text, Jina's image, vLLM's parts.
    row(Place::Message, "text", Field::Text, TEXT),
    row(Place::Message, "image", Field::ImageData, Holds::Media(Kind::Image)),
    row(Place::Message, "content", Field::Content, text_or_list(Place::Part)),
];
