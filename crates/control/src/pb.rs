//! The messages, as generated from `proto/netsum/control/v1/control.proto`.
#![allow(missing_docs, clippy::all)]

tonic::include_proto!("netsum.control.v1");

/// Rows of stores, as generated from `proto/netsum/store/v1/store.proto`.
pub(crate) mod store {
    tonic::include_proto!("netsum.store.v1");
}

/// The part of etcd's API that the store uses, as generated from `proto/etcd/rpc.proto`.
pub(crate) mod etcd {
    tonic::include_proto!("etcdserverpb");
}
