// How C++ failures become statuses of the C interface.
#pragma once

#include <string>

#include "ckpt/error.h"

namespace shardwright::capi {

/// Notes a call of this thread that went well, and returns its status.
int succeed() noexcept;
/// Notes the exception in flight as this thread's last error, and returns its status.
int fail() noexcept;

/// Runs the body of a C function. No exception leaves.
template <class Body>
int guarded(Body body) noexcept {
  try {
    body();
    return succeed();
  } catch (...) {
    return fail();
  }
}

/// Throws the Error(usage) of an argument that is wrong.
[[noreturn]] void refuse(const std::string& what);
/// Refuses a null pointer; `argument` is its name in the header.
void need(const void* pointer, const char* argument);

}  // namespace shardwright::capi
