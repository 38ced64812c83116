//! The canonical form of a JSON text: equal for equal values, different for different ones.
