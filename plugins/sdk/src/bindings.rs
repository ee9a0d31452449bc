//! Generated from `wit/v0.1`. Nobody but `glue` and the export macros uses it.
//!
//! The shared types are generated once and the worlds point at them, so that one `Object` serves all three.

/// `types` and `log`, which every world imports.
pub mod shared {
    wit_bindgen::generate!({
        path: "../../wit/v0.1",
        inline: "package hostler:sdk;
            world shared { import hostler:plugin/types@0.1.0; import hostler:plugin/log@0.1.0; }",
        generate_all,
        generate_unused_types: true,
    });
    pub use hostler::plugin::{log, types};
}

/// World `machine-driver`.
pub mod driver {
    wit_bindgen::generate!({
        path: "../../wit/v0.1",
        world: "machine-driver",
        with: {
            "hostler:plugin/types@0.1.0": crate::bindings::shared::types,
            "hostler:plugin/log@0.1.0": crate::bindings::shared::log,
        },
        pub_export_macro: true,
        export_macro_name: "export_machine_driver",
        default_bindings_module: "hostler_sdk::bindings::driver",
    });
    pub use exports::hostler::plugin::driver as world;
}

/// World `review-policy`.
pub mod policy {
    wit_bindgen::generate!({
        path: "../../wit/v0.1",
        world: "review-policy",
        with: {
            "hostler:plugin/types@0.1.0": crate::bindings::shared::types,
            "hostler:plugin/log@0.1.0": crate::bindings::shared::log,
        },
        pub_export_macro: true,
        export_macro_name: "export_review_policy",
        default_bindings_module: "hostler_sdk::bindings::policy",
    });
    pub use exports::hostler::plugin::policy as world;
}

/// World `profile-resolver`.
pub mod resolver {
    wit_bindgen::generate!({
        path: "../../wit/v0.1",
        world: "profile-resolver",
        with: {
            "hostler:plugin/types@0.1.0": crate::bindings::shared::types,
            "hostler:plugin/log@0.1.0": crate::bindings::shared::log,
        },
        pub_export_macro: true,
        export_macro_name: "export_profile_resolver",
        default_bindings_module: "hostler_sdk::bindings::resolver",
    });
    pub use exports::hostler::plugin::resolver as world;
}
