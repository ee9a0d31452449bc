//! What `wasmtime` makes of `wit/v0.1`: one module per world, the shared interfaces once.
#![allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::str_to_string,
    clippy::panic,
    reason = "generated: the words are explained in wit/v0.1, and the lifting and lowering of records is the generator's"
)]

pub use driver::hostler::plugin::{log, types};

pub mod driver {
    //! `machine-driver`
    wasmtime::component::bindgen!({
        path: "../../wit/v0.1",
        world: "machine-driver",
        exports: { default: async },
        additional_derives: [serde::Serialize],
    });
}

pub mod policy {
    //! `review-policy`
    wasmtime::component::bindgen!({
        path: "../../wit/v0.1",
        world: "review-policy",
        exports: { default: async },
        additional_derives: [serde::Serialize],
        with: {
            "hostler:plugin/types": super::types,
            "hostler:plugin/log": super::log,
        },
    });
}

pub mod resolver {
    //! `profile-resolver`
    wasmtime::component::bindgen!({
        path: "../../wit/v0.1",
        world: "profile-resolver",
        exports: { default: async },
        additional_derives: [serde::Serialize],
        with: {
            "hostler:plugin/types": super::types,
            "hostler:plugin/log": super::log,
        },
    });
}
