//! Loop tests of the claim slice.
