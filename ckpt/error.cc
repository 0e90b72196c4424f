#include "ckpt/error.h"

#include <cerrno>
#include <system_error>

namespace shardwright {

const char* name(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage:
      return "usage";
    case ErrorCode::missing:
      return "missing";
    case ErrorCode::exists:
      return "exists";
    case ErrorCode::mismatch:
      return "mismatch";
    case ErrorCode::busy:
      return "busy";
    case ErrorCode::io:
      return "io";
    case ErrorCode::no_space:
      return "no_space";
    case ErrorCode::damaged:
      return "damaged";
    case ErrorCode::incomplete:
      return "incomplete";
    case ErrorCode::future_version:
      return "future_version";
    case ErrorCode::deadline:
      return "deadline";
    case ErrorCode::peer:
      return "peer";
    case ErrorCode::nonfinite:
      return "nonfinite";
    case ErrorCode::given_up:
      return "given_up";
    case ErrorCode::preempted:
      return "preempted";
  }
  return "unknown";
}

int exit_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage:
    case ErrorCode::missing:
    case ErrorCode::exists:
    case ErrorCode::mismatch:
      return 2;
    case ErrorCode::busy:
      return 3;
    case ErrorCode::preempted:
      return 75;
    default:
      return 1;
  }
}

void throw_errno(int error, const std::string& what, const std::string& path) {
  ErrorCode code = ErrorCode::io;
  std::string advice;
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      code = ErrorCode::no_space;
      advice = "; free some space, raise the quota or size limit, or choose another directory";
      break;
    case ENOENT:
      code = ErrorCode::missing;
      advice = "; check the path";
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      advice = "; a path this user may use is needed";
      break;
    case EMFILE:
      advice = "; a higher limit of open files (ulimit -n) is needed";
      break;
    case ENFILE:
      advice = "; the whole system has too many files open";
      break;
    case ENAMETOOLONG:
      advice = "; a shorter path is needed";
      break;
    case ELOOP:
      advice = "; a path without a circle of links is needed";
      break;
    case ENOTDIR:
      advice = "; something on the way is no directory, check the path";
      break;
    case EAGAIN:
    case ENOMEM:
      advice = "; a limit of memory or processes (ulimit) is reached";
      break;
    default:
      break;
  }
  // std::system_category() is thread-safe, strerror() is not.
  throw Error(code, path + ": " + what + ": " + std::system_category().message(error) + advice, path);
}

}  // namespace shardwright
