# What `cmake --install` puts where. Two components: `library` (libraries, headers, filter, package files, documentation)
# and `program` (the binary, its manual page and completion); without --component, both.
#
# ckpt and reshard install as static libraries: their C++ interface may change with every release, so a program should
# never meet another version than it was built with. The shared library is the C interface, which is stable.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shardwright)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/shardwright-config.cmake.in
                              ${PROJECT_BINARY_DIR}/package/shardwright-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/shardwright-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/shardwright-config.cmake
              ${PROJECT_BINARY_DIR}/package/shardwright-config-version.cmake
        DESTINATION ${package_dir} COMPONENT library)

# install_headers(<room> <header>...): as shardwright/<room>/<header>. In the source tree they include each other by
# "<room>/<header>"; installed, by the name that programs use, so that one include path is enough and no folder of a
# program's own, called ckpt perhaps, can come in between.
function(install_headers room)
  install(CODE "
    set(room \"${room}\")
    set(from \"${CMAKE_CURRENT_SOURCE_DIR}\")
    set(to \"${CMAKE_INSTALL_INCLUDEDIR}/shardwright/${room}\")
    set(headers \"${ARGN}\")" COMPONENT library)
  install(CODE [[
    message(STATUS "Installing: $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${to}/*.h")
    foreach(header IN LISTS headers)
      file(READ "${from}/${header}" text)
      string(REGEX REPLACE "#include \"(ckpt|reshard)/" "#include \"shardwright/\\1/" text "${text}")
      file(WRITE "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${to}/${header}" "${text}")
      list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${CMAKE_INSTALL_PREFIX}/${to}/${header}")
    endforeach()]] COMPONENT library)
endfunction()

# install_library(<target> <name> <pkg-config modules that its users need> <description>): as the CMake target
# shardwright::<name>, a component of the package, and as the pkg-config module shardwright-<name>.
function(install_library target name requires description)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS ${target} EXPORT shardwright-${name}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT library
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
  install(EXPORT shardwright-${name} FILE shardwright-${name}-targets.cmake NAMESPACE shardwright::
          DESTINATION ${package_dir} COMPONENT library)
  get_target_property(library ${target} OUTPUT_NAME)
  if(NOT library)
    set(library ${target})
  endif()
  set(threads "")
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    set(threads " -pthread")
  endif()
  file(RELATIVE_PATH up ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  configure_file(${PROJECT_SOURCE_DIR}/ckpt/install/module.pc.in ${PROJECT_BINARY_DIR}/package/shardwright-${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/package/shardwright-${name}.pc
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)
endfunction()
