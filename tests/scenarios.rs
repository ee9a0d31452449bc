//! What users do, against the whole host.
