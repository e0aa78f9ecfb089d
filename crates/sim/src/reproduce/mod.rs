//! Published results, ours beside theirs.
