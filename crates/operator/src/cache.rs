//! Copies of objects that the API server keeps up to date, and what wakes up whoever depends on them.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use futures::StreamExt;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, watcher};
use kube::runtime::{WatchStreamExt, reflector as reflect};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use crate::error::OperatorError;

/// Watches objects until the process ends, and wakes `changed` after each change. `slim` drops what nobody reads.
/// Returns once the first list is complete.
pub async fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
    slim: impl FnMut(&mut K) + Send + 'static,
    changed: Arc<Notify>,
) -> Result<Store<K>, OperatorError>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
{
    let (store, writer) = reflector::store();
    let events = watcher(api, config).modify(slim).default_backoff();
    let what = K::kind(&K::DynamicType::default()).into_owned();
    tokio::spawn(async move {
        let mut events = std::pin::pin!(reflect(writer, events));
        while let Some(event) = events.next().await {
            match event {
                Ok(_) => changed.notify_one(),
                Err(error) => tracing::warn!(%error, what, "cannot watch; trying again"),
            }
        }
    });
    store.wait_until_ready().await.map_err(|_| OperatorError::Ended("a watch"))?;
    Ok(store)
}
