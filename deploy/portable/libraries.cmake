# KILN_PORTABLE: every library but glibc's is linked in, from archives. Included before the libraries are
# looked for; kiln_link_archives() comes after.
set(KILN_PORTABLE_LIBRARIES "" CACHE PATH "Where deploy/portable/static-libraries.sh put its archives")
foreach(name absl_base protobuf re2 prometheus-cpp-core curl)
  if(NOT EXISTS ${KILN_PORTABLE_LIBRARIES}/lib/lib${name}.a)
    message(FATAL_ERROR "lib${name}.a is not in KILN_PORTABLE_LIBRARIES; deploy/portable.sh makes it")
  endif()
endforeach()
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
# No program looks for a library where this machine has it.
set(CMAKE_SKIP_BUILD_RPATH ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH OFF)
# lld takes archives in any order, as these dependencies want it; glibc 2.36 is the first that reads
# packed relocations.
add_link_options(-fuse-ld=lld -static-libstdc++ -static-libgcc -Wl,--gc-sections
                 -Wl,-z,pack-relative-relocs)

# In ARCHIVE, what to link for a library's file: what static-libraries.sh made, else the archive beside a
# shared library; empty where there is neither.
function(kiln_archive_of archive library)
  string(REGEX REPLACE "\\.(a|so(\\.[0-9]+)*)$" ".a" beside "${library}")
  get_filename_component(name "${beside}" NAME)
  set(made ${KILN_PORTABLE_LIBRARIES}/lib/${name})
  if(EXISTS ${made})
    set(beside ${made})
  elseif(NOT EXISTS "${beside}")
    set(beside "")
  endif()
  set(${archive} "${beside}" PARENT_SCOPE)
endfunction()

# The same for what an imported target links besides other targets. What has no archive is left out: the
# linker says whether it was needed.
function(kiln_link_archives_below target)
  get_target_property(libraries ${target} INTERFACE_LINK_LIBRARIES)
  set(kept)
  foreach(library ${libraries})
    string(REGEX REPLACE "^-l(.+)$" "lib\\1.so" library "${library}")  # as pkg-config has it
    if(library MATCHES "\\.so(\\.[0-9]+)*$")
      kiln_archive_of(library "${library}")
    endif()
    list(APPEND kept ${library})
  endforeach()
  if(libraries)
    set_target_properties(${target} PROPERTIES INTERFACE_LINK_LIBRARIES "${kept}")
  endif()
endfunction()

# LLVM's and Clang's one shared library each become their parts, for x86-64 and NVPTX.
function(kiln_link_llvm_parts)
  set(parts AsmParser BitReader BitWriter CodeGen Core Coverage FrontendDriver FrontendHLSL
      FrontendOffloading FrontendOpenMP HipStdPar IRReader LTO Linker MCParser ObjCARCOpts Option Passes
      ProfileData Support Symbolize WindowsDriver
      NVPTXCodeGen NVPTXDesc NVPTXInfo X86AsmParser X86CodeGen X86Desc X86Info)
  list(TRANSFORM parts PREPEND LLVM)
  # Debian's archives have every pass but Polly's, which Clang asks for all the same.
  set_target_properties(LLVMExtensions PROPERTIES INTERFACE_LINK_LIBRARIES LLVMSupport)
  kiln_become_parts(LLVM ${parts} kiln_llvm_left_out)
  kiln_become_parts(clang-cpp clangCodeGen clangFrontend clangSerialization)

  # lld's driver initializes every target that LLVM was built with.
  set(left_out "/* Targets of LLVM that are not linked in. */\n")
  foreach(name ${LLVM_TARGETS_TO_BUILD})
    if(NOT LLVM${name}CodeGen IN_LIST parts)
      foreach(step TargetInfo Target TargetMC AsmPrinter AsmParser)
        string(APPEND left_out "void LLVMInitialize${name}${step}(void) {}\n")
      endforeach()
    endif()
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/llvm_targets_left_out.c CONTENT "${left_out}")
  add_library(kiln_llvm_left_out STATIC
    ${CMAKE_BINARY_DIR}/llvm_targets_left_out.c ${CMAKE_SOURCE_DIR}/deploy/portable/polly_left_out.cc)
  target_include_directories(kiln_llvm_left_out SYSTEM PRIVATE ${LLVM_INCLUDE_DIRS})
endfunction()

# The imported shared library `target` stands for the imported archives that follow.
function(kiln_become_parts target first)
  get_target_property(location ${first} LOCATION)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${location}" IMPORTED_CONFIGURATIONS ""
                        INTERFACE_LINK_LIBRARIES "${first};${ARGN}")
endfunction()

# Turns every imported shared library of the caller's folder into the archive beside it.
function(kiln_link_archives)
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target ${targets})
    get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
    list(TRANSFORM configurations PREPEND _)
    foreach(property IMPORTED_LOCATION ${configurations})
      string(REGEX REPLACE "^_" "IMPORTED_LOCATION_" property ${property})
      get_target_property(location ${target} ${property})
      kiln_archive_of(archive "${location}")
      if(archive)
        set_target_properties(${target} PROPERTIES ${property} "${archive}")
      endif()
    endforeach()
    kiln_link_archives_below(${target})
  endforeach()
  # What the shared library brings along, the archive asks for.
  set_target_properties(RocksDB::rocksdb-shared PROPERTIES INTERFACE_LINK_LIBRARIES RocksDB::rocksdb)
  kiln_link_llvm_parts()
endfunction()

# For deploy/portable/optimize.sh: programs that BOLT may take apart. It breaks those with packed relocations.
function(kiln_keep_relocations)
  foreach(target ${ARGN})
    target_link_options(${target} PRIVATE -Wl,--emit-relocs -Wl,-z,nopack-relative-relocs)
  endforeach()
endfunction()
