//! First touch (scaffold).
