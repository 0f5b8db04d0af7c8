function __dlcmd
    for line in (env _DLCMD_COMPLETE=(commandline -cp | string collect) dlcmd (commandline -ct) 2>/dev/null)
        switch $line
            case file
                __fish_complete_path (commandline -ct)
            case dir
                __fish_complete_directories (commandline -ct)
            case '*'
                echo $line
        end
    end
end
complete -c dlcmd -f -a '(__dlcmd)'
