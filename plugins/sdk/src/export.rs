//! The macros that make a component of a type, and its golden cases a test.

/// Makes this crate a component of the world `machine-driver`. The type implements [`Driver`](crate::driver::Driver).
#[macro_export]
macro_rules! export_driver {
    ($plugin:ident) => {
        #[cfg(not(target_arch = "wasm32"))]
        impl $crate::cases::Plugin for $plugin {
            fn call(
                function: &str,
                arguments: $crate::serde_json::Value,
            ) -> ::std::result::Result<$crate::serde_json::Value, ::std::string::String> {
                $crate::cases::call_driver::<Self>(function, arguments)
            }
        }

        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, reason = "the exports of a component are raw functions")]
        mod hostler_component {
            type Component = $crate::glue::DriverOf<super::$plugin>;
            $crate::bindings::driver::export_machine_driver!(Component with_types_in $crate::bindings::driver);
        }
    };
}

/// Makes this crate a component of the world `review-policy`. The type implements [`Policy`](crate::policy::Policy).
#[macro_export]
macro_rules! export_policy {
    ($plugin:ident) => {
        #[cfg(not(target_arch = "wasm32"))]
        impl $crate::cases::Plugin for $plugin {
            fn call(
                function: &str,
                arguments: $crate::serde_json::Value,
            ) -> ::std::result::Result<$crate::serde_json::Value, ::std::string::String> {
                $crate::cases::call_policy::<Self>(function, arguments)
            }
        }

        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, reason = "the exports of a component are raw functions")]
        mod hostler_component {
            type Component = $crate::glue::PolicyOf<super::$plugin>;
            $crate::bindings::policy::export_review_policy!(Component with_types_in $crate::bindings::policy);
        }
    };
}

/// Makes this crate a component of the world `profile-resolver`. The type implements [`Resolver`](crate::resolver::Resolver).
#[macro_export]
macro_rules! export_resolver {
    ($plugin:ident) => {
        #[cfg(not(target_arch = "wasm32"))]
        impl $crate::cases::Plugin for $plugin {
            fn call(
                function: &str,
                arguments: $crate::serde_json::Value,
            ) -> ::std::result::Result<$crate::serde_json::Value, ::std::string::String> {
                $crate::cases::call_resolver::<Self>(function, arguments)
            }
        }

        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, reason = "the exports of a component are raw functions")]
        mod hostler_component {
            type Component = $crate::glue::ResolverOf<super::$plugin>;
            $crate::bindings::resolver::export_profile_resolver!(
                Component with_types_in $crate::bindings::resolver
            );
        }
    };
}

/// Makes one native test of all golden cases in the crate's folder `cases`. The type is one that an export macro has seen.
#[macro_export]
macro_rules! cases {
    ($plugin:ident) => {
        #[cfg(all(test, not(target_arch = "wasm32")))]
        mod golden_cases {
            #[test]
            fn every_golden_case_holds() {
                let folder = ::std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
                if let Err(failures) = $crate::cases::run::<super::$plugin>(&folder) {
                    panic!("{failures}");
                }
            }
        }
    };
}
