// The float64 decoder under the name that tests of GPT-2 know it by.
#pragma once

#include "tests/unit/trainer/decoder_reference.h"

namespace shardwright::trainer {

using Gpt2Reference = DecoderReference;

}  // namespace shardwright::trainer
