"""A model repository for Triton Inference Server: NAME/config.pbtxt and NAME/VERSION/model.*."""
