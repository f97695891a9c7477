//! Helpers of both XML importers.

use std::str::FromStr;

use roxmltree::{Document, Node, ParsingOptions};

use super::Source;
use crate::error::TopoError;

/// Parses the text; a document type is allowed, because lstopo writes one. Errors give line and column.
pub(super) fn parse<'a>(source: &Source<'a>) -> Result<Document<'a>, TopoError> {
    let options = ParsingOptions { allow_dtd: true, nodes_limit: 1 << 20, ..Default::default() };
    Document::parse_with_options(source.text, options).map_err(|error| {
        let at = error.pos();
        source
            .fault(format!("line {}, column {}", at.row, at.col), format!("malformed XML: {error}"))
    })
}

/// Position of a node, as `line 3 (<pci>)`.
pub(super) fn place(node: Node<'_, '_>) -> String {
    let at = node.document().text_pos_at(node.range().start);
    format!("line {} (<{}>)", at.row, node.tag_name().name())
}

/// The attribute as a number; an error if it is missing or not a number.
pub(super) fn number<T: FromStr>(
    source: &Source<'_>,
    node: Node<'_, '_>,
    name: &str,
) -> Result<T, TopoError> {
    let text = node.attribute(name);
    text.and_then(|text| text.trim().parse().ok()).ok_or_else(|| {
        let found = text.map_or("is missing".to_owned(), |text| format!("is {text:?}"));
        source.fault(place(node), format!("attribute {name} {found}; it must be a number"))
    })
}
