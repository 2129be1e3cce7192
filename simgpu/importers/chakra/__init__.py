"""MLCommons Chakra execution traces: protobuf (``.et``) and the JSON forms of Chakra's tools, plain or gzip."""
