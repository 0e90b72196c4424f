#include "ckpt/capi/last_error.h"

#include <new>

#include "ckpt/capi/shardwright.h"

namespace shardwright::capi {
namespace {

struct LastError {
  int status = SHARDWRIGHT_OK;
  const char* fixed = "";  // the message where there is no memory for one
  std::string message;
  std::string path;
};
thread_local LastError last;

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage:
      return SHARDWRIGHT_USAGE;
    case ErrorCode::missing:
      return SHARDWRIGHT_MISSING;
    case ErrorCode::exists:
      return SHARDWRIGHT_EXISTS;
    case ErrorCode::mismatch:
      return SHARDWRIGHT_MISMATCH;
    case ErrorCode::busy:
      return SHARDWRIGHT_BUSY;
    case ErrorCode::io:
      return SHARDWRIGHT_IO;
    case ErrorCode::no_space:
      return SHARDWRIGHT_NO_SPACE;
    case ErrorCode::damaged:
      return SHARDWRIGHT_DAMAGED;
    case ErrorCode::incomplete:
      return SHARDWRIGHT_INCOMPLETE;
    case ErrorCode::future_version:
      return SHARDWRIGHT_FUTURE_VERSION;
    case ErrorCode::deadline:
      return SHARDWRIGHT_DEADLINE;
    case ErrorCode::peer:
      return SHARDWRIGHT_PEER;
    case ErrorCode::nonfinite:  // these belong to training
    case ErrorCode::given_up:
    case ErrorCode::preempted:
      return SHARDWRIGHT_INTERNAL;
  }
  return SHARDWRIGHT_INTERNAL;
}

int note(int status, const char* message, const std::string& path) noexcept {
  last.status = status;
  last.fixed = "";
  try {
    last.message = message;
    last.path = path;
  } catch (const std::bad_alloc&) {
    last.message.clear();
    last.path.clear();
    last.fixed = "no memory to say what is wrong; shardwright_error_status() tells its kind";
  }
  return status;
}

}  // namespace

int succeed() noexcept { return note(SHARDWRIGHT_OK, "", {}); }

int fail() noexcept {
  try {
    throw;
  } catch (const Error& e) {
    return note(status_of(e.code()), e.what(), e.path());
  } catch (const std::bad_alloc&) {
    return note(SHARDWRIGHT_NO_MEMORY, "not enough memory; smaller boxes need less", {});
  } catch (const std::exception& e) {
    return note(SHARDWRIGHT_INTERNAL, e.what(), {});
  } catch (...) {
    return note(SHARDWRIGHT_INTERNAL, "an exception of unknown type", {});
  }
}

void refuse(const std::string& what) { throw Error(ErrorCode::usage, what); }

void need(const void* pointer, const char* argument) {
  if (pointer == nullptr) refuse(std::string(argument) + ": is NULL; a valid pointer is needed");
}

}  // namespace shardwright::capi

extern "C" {

int shardwright_error_status(void) { return shardwright::capi::last.status; }

const char* shardwright_error_message(void) {
  const auto& last = shardwright::capi::last;
  return last.message.empty() ? last.fixed : last.message.c_str();
}

const char* shardwright_error_path(void) { return shardwright::capi::last.path.c_str(); }

const char* shardwright_status_name(int status) {
  switch (status) {
    case SHARDWRIGHT_OK:
      return "ok";
    case SHARDWRIGHT_USAGE:
      return "usage";
    case SHARDWRIGHT_MISSING:
      return "missing";
    case SHARDWRIGHT_EXISTS:
      return "exists";
    case SHARDWRIGHT_MISMATCH:
      return "mismatch";
    case SHARDWRIGHT_BUSY:
      return "busy";
    case SHARDWRIGHT_IO:
      return "io";
    case SHARDWRIGHT_NO_SPACE:
      return "no_space";
    case SHARDWRIGHT_DAMAGED:
      return "damaged";
    case SHARDWRIGHT_INCOMPLETE:
      return "incomplete";
    case SHARDWRIGHT_FUTURE_VERSION:
      return "future_version";
    case SHARDWRIGHT_DEADLINE:
      return "deadline";
    case SHARDWRIGHT_PEER:
      return "peer";
    case SHARDWRIGHT_NO_MEMORY:
      return "no_memory";
    case SHARDWRIGHT_INTERNAL:
      return "internal";
    default:
      return "unknown";
  }
}

}  // extern "C"
