//! Golden cases through a component.
