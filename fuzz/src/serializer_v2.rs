//! Any frame as a message of V2; see [`super::serializer`].
use simurgh_proto::serializer::Serializer;

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    super::serializer::run(Serializer::V2, data);
}
