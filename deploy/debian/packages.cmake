# `cpack -G DEB` in a build of the preset release, on Debian 12: four packages, each a component of the
# installation, with what their programs and libraries need of Debian (dpkg-shlibdeps).
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kiln)
set(CPACK_PACKAGE_VENDOR Kiln)
set(CPACK_PACKAGE_CONTACT "Kiln <kiln@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Compilation service with a kernel cache for tensor graphs")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_SET_DESTDIR ON)  # /etc/kiln lies outside of the prefix
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL kilnd libkiln libkiln-dev kiln-tools)
set(CPACK_COMPONENTS_GROUPING IGNORE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_KILND_PACKAGE_NAME kilnd)
set(CPACK_DEBIAN_KILND_PACKAGE_SECTION net)
set(CPACK_COMPONENT_KILND_DESCRIPTION "The server: starts by itself for a user, or as the service kilnd")
# The service's user is systemd's to make (DynamicUser).
set(CPACK_DEBIAN_KILND_PACKAGE_CONTROL_EXTRA
  "${CMAKE_CURRENT_SOURCE_DIR}/debian/conffiles;${CMAKE_CURRENT_SOURCE_DIR}/debian/postinst;${CMAKE_CURRENT_SOURCE_DIR}/debian/prerm;${CMAKE_CURRENT_SOURCE_DIR}/debian/postrm")

set(CPACK_DEBIAN_LIBKILN_PACKAGE_NAME libkiln)
set(CPACK_DEBIAN_LIBKILN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBKILN_PACKAGE_RECOMMENDS kilnd)
set(CPACK_COMPONENT_LIBKILN_DESCRIPTION "The client library, in C and C++")

set(CPACK_DEBIAN_LIBKILN-DEV_PACKAGE_NAME libkiln-dev)
set(CPACK_DEBIAN_LIBKILN-DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBKILN-DEV_PACKAGE_DEPENDS "libkiln (= ${PROJECT_VERSION}), libabsl-dev")
set(CPACK_COMPONENT_LIBKILN-DEV_DESCRIPTION "Headers, CMake package and examples of the client library")

set(CPACK_DEBIAN_KILN-TOOLS_PACKAGE_NAME kiln-tools)
set(CPACK_DEBIAN_KILN-TOOLS_PACKAGE_SECTION devel)
set(CPACK_DEBIAN_KILN-TOOLS_PACKAGE_RECOMMENDS kilnd)
set(CPACK_COMPONENT_KILN-TOOLS_DESCRIPTION "The command line: kiln run, status, cache, top")
include(CPack)
