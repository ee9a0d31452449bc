//! Encodes components.
