//! serializer
