# Run by `cmake --install` after the programs: the systemd unit and the configuration that it reads.
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(config_dir /etc/kiln)
else()
  set(config_dir ${CMAKE_INSTALL_PREFIX}/etc/kiln)
endif()

file(READ ${KILN_DEPLOY_DIR}/systemd/kilnd.service unit)
string(REPLACE /usr/bin/kilnd ${CMAKE_INSTALL_PREFIX}/bin/kilnd unit "${unit}")
string(REPLACE /etc/kiln/ ${config_dir}/ unit "${unit}")
set(unit_file $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/systemd/system/kilnd.service)
file(WRITE ${unit_file} "${unit}")
message(STATUS "Installing: ${unit_file}")

# An operator's settings stay.
if(EXISTS $ENV{DESTDIR}${config_dir}/kilnd.conf)
  message(STATUS "Kept: $ENV{DESTDIR}${config_dir}/kilnd.conf")
else()
  file(INSTALL ${KILN_DEPLOY_DIR}/kilnd.conf DESTINATION ${config_dir})
endif()
