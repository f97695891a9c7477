//! Finds the key of a document to which an error refers.

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, Error};

/// The key at byte `at`, as "flows.0.load", and the byte at which it begins; `None` if there is none.
pub(super) fn key_at<T: DeserializeOwned>(
    text: &str,
    at: usize,
    error: &Error,
) -> Option<(String, usize)> {
    let document = DeTable::parse(text).ok()?;
    let mut path = Vec::new();
    find(document.get_ref(), at, &mut path);
    // For a tagged table serde reports only the table's position: the wrong key is the one whose removal changes the
    // error.
    let message = error.message();
    let keys =
        table_at(document.clone().get_mut(), &path).map_or(Vec::new(), |table| keys_of(table));
    let inner = match message.starts_with("missing field") {
        true => None,
        false => keys.into_iter().find(|(key, _)| {
            let mut without = document.clone();
            table_at(without.get_mut(), &path).map(|table| table.remove(key.as_str()));
            let outcome = T::deserialize(Deserializer::from(without));
            outcome.err().is_none_or(|other| other.message() != message)
        }),
    };
    let at = inner.as_ref().map_or(at, |inner| inner.1);
    path.extend(inner.map(|inner| inner.0));
    (!path.is_empty()).then(|| (path.join("."), at))
}

/// Finds the path to the innermost key or value at a byte.
fn find(table: &DeTable, at: usize, path: &mut Vec<String>) -> bool {
    table.iter().any(|(key, value)| {
        path.push(key.get_ref().to_string());
        let found = key.span().contains(&at) || find_in(value, at, path);
        if !found {
            path.pop();
        }
        found
    })
}

fn find_in(value: &Spanned<DeValue>, at: usize, path: &mut Vec<String>) -> bool {
    let inside = match value.get_ref() {
        DeValue::Table(table) => find(table, at, path),
        DeValue::Array(array) => array.iter().enumerate().any(|(i, item)| {
            path.push(i.to_string());
            let found = find_in(item, at, path);
            if !found {
                path.pop();
            }
            found
        }),
        _ => false,
    };
    inside || value.span().contains(&at)
}

/// The keys of a table in the order of the document, the tag last, with their positions.
fn keys_of(table: &DeTable) -> Vec<(String, usize)> {
    let keys = table.keys().map(|key| (key.get_ref().to_string(), key.span().start));
    let mut keys: Vec<_> = keys.collect();
    keys.sort_by_key(|(key, at)| (key == TAG, *at));
    keys
}

/// The table at a path, if there is one.
fn table_at<'a, 'i>(document: &'a mut DeTable<'i>, path: &[String]) -> Option<&'a mut DeTable<'i>> {
    let Some((first, rest)) = path.split_first() else { return Some(document) };
    let mut value = document.get_mut(first.as_str())?.get_mut();
    for part in rest {
        value = match value {
            DeValue::Table(table) => table.get_mut(part.as_str())?.get_mut(),
            DeValue::Array(array) => array.get_mut(part.parse::<usize>().ok()?)?.get_mut(),
            _ => return None,
        };
    }
    match value {
        DeValue::Table(table) => Some(table),
        _ => None,
    }
}

/// The key that selects a table's variant; without it every error is a different one.
const TAG: &str = "kind";
