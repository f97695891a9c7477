//! The messages, as generated from `proto/netsum/control/v1/control.proto`.
#![allow(missing_docs, clippy::all)]

tonic::include_proto!("netsum.control.v1");
