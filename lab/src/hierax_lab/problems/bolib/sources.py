"""Where each problem of BOLIB comes from, by authors and year as its name begins."""

SOURCES = {
    "AiyoshiShimizu1984": "E. Aiyoshi, K. Shimizu, A solution method for the static constrained Stackelberg "
    "problem via penalty method, IEEE Trans. Automatic Control 29 (1984) 1111-1114",
    "AllendeStill2013": "G. B. Allende, G. Still, Solving bilevel programs with the KKT-approach, Math. "
    "Programming 138 (2013) 309-332",
    "AnEtal2009": "L. T. H. An, P. D. Tao, N. N. Canh, N. V. Thoai, DC programming techniques for solving a "
    "class of nonlinear bilevel programs, J. Global Optim. 44 (2009) 313-337",
    "Bard1988": "J. F. Bard, Convex two-level optimization, Math. Programming 40 (1988) 15-27",
    "BardBook1998": "J. F. Bard, Practical bilevel optimization: algorithms and applications, Kluwer, 1998",
    "CalamaiVicente1994": "P. H. Calamai, L. N. Vicente, Generating quadratic bilevel programming test "
    "problems, ACM Trans. Math. Software 20 (1994) 103-119",
    "Colson2002": "B. Colson, BIPA (Bilevel programming with approximation methods): software guide and test "
    "problems, technical report, 2002",
    "Dempe1992": "S. Dempe, A necessary and a sufficient optimality condition for bilevel programming problems, "
    "Optimization 25 (1992) 341-354",
    "DempeDutta2012": "S. Dempe, J. Dutta, Is bilevel programming a special case of a mathematical program with "
    "complementarity constraints?, Math. Programming 131 (2012) 37-48",
    "DempeFranke2011": "S. Dempe, S. Franke, An algorithm for solving a class of bilevel programming problems, "
    "preprint 2011-04, TU Bergakademie Freiberg, 2011",
    "DempeFranke2014": "S. Dempe, S. Franke, Solution algorithm for an optimistic linear Stackelberg problem, "
    "Computers & Oper. Res. 41 (2014) 277-281",
    "DempeLohse2011": "S. Dempe, S. Lohse, Dependence of bilevel programming on irrelevant data, TU "
    "Bergakademie Freiberg, 2011",
    "FloudasEtal2013": "C. A. Floudas et al., Handbook of test problems in local and global optimization, "
    "Springer, 1999/2013",
    "FloudasZlobec1998": "C. A. Floudas, S. Zlobec, Optimality and duality in parametric convex lexicographic "
    "programming, in Multilevel Optimization, Springer, 1998, 359-379",
    "HatzEtal2013": "K. Hatz, S. Leyffer, J. P. Schloeder, H. G. Bock, Regularizing bilevel nonlinear programs "
    "by lifting, Argonne National Laboratory, 2013",
    "HendersonQuandt1958": "J. M. Henderson, R. E. Quandt, Microeconomic theory: a mathematical approach, "
    "McGraw-Hill, 1958",
    "IshizukaAiyoshi1992": "Y. Ishizuka, E. Aiyoshi, Double penalty method for bilevel optimization problems, "
    "Annals Oper. Res. 34 (1992) 73-88",
    "LamparielloSagratella2017": "L. Lampariello, S. Sagratella, A bridge between bilevel programs and Nash "
    "games, J. Optim. Theory Appl. 174 (2017) 613-635",
    "LuDebSinha2016": "Z. Lu, K. Deb, A. Sinha, Robust and reliable solutions in bilevel optimization problems "
    "under uncertainties, COIN report 2016026, 2016",
    "LucchettiEtal1987": "R. Lucchetti, F. Mignanego, G. Pieri, Existence theorems of equilibrium points in "
    "Stackelberg games with constraints, Optimization 18 (1987) 857-866",
    "MacalHurter1997": "C. M. Macal, A. P. Hurter, Dependence of bilevel mathematical programs on irrelevant "
    "constraints, Computers & Oper. Res. 24 (1997) 1129-1140",
    "Mirrlees1999": "J. A. Mirrlees, The theory of moral hazard and unobservable behaviour: part I, Review of "
    "Economic Studies 66 (1999) 3-21",
    "MitsosBarton2006": "A. Mitsos, P. I. Barton, A test set for bilevel programs, technical report, MIT, 2006",
    "MorganPatrone2006": "J. Morgan, F. Patrone, Stackelberg problems: subgame perfect equilibria via Tikhonov "
    "regularization, Advances in Dynamic Games (2006) 209-221",
    "MuuQuy2003": "L. D. Muu, N. V. Quy, A global optimization method for solving convex quadratic bilevel "
    "programming problems, J. Global Optim. 26 (2003) 199-219",
    "NieWangYe2017": "J. Nie, L. Wang, J. J. Ye, Bilevel polynomial programs and semidefinite relaxation "
    "methods, SIAM J. Optim. 27 (2017) 1728-1757",
    "Outrata1990": "J. V. Outrata, On the numerical solution of a class of Stackelberg problems, Z. Oper. Res. "
    "34 (1990) 255-277",
    "Outrata1993": "J. V. Outrata, Necessary optimality conditions for Stackelberg problems, J. Optim. Theory "
    "Appl. 76 (1993) 305-320",
    "Outrata1994": "J. V. Outrata, On optimization problems with variational inequality constraints, SIAM J. "
    "Optim. 4 (1994) 340-357",
    "OutrataCervinka2009": "J. V. Outrata, M. Cervinka, On the implicit programming approach in a class of "
    "mathematical programs with equilibrium constraints, Control and Cybernetics 38 (2009) 1557-1574",
    "PaulaviciusAdjiman2017": "R. Paulavicius, P.-M. Kleniati, C. S. Adjiman, BASBL: branch-and-sandwich "
    "bilevel solver, part II, technical report, 2017",
    "ShimizuAiyoshi1981": "K. Shimizu, E. Aiyoshi, A new computational method for Stackelberg and min-max "
    "problems by use of a penalty method, IEEE Trans. Automatic Control 26 (1981) 460-466",
    "ShimizuEtal1997": "K. Shimizu, Y. Ishizuka, J. F. Bard, Nondifferentiable and two-level mathematical "
    "programming, Kluwer, 1997",
    "SinhaMaloDeb2014": "A. Sinha, P. Malo, K. Deb, An improved bilevel evolutionary algorithm based on "
    "quadratic approximations, IEEE CEC 2014, 1870-1877",
    "TuyEtal2007": "H. Tuy, A. Migdalas, N. T. Hoai-Phuong, A novel approach to bilevel nonlinear programming, "
    "J. Global Optim. 38 (2007) 527-554",
    "Vogel2012": "S. Vogel, Zwei-Ebenen-Optimierungsaufgaben mit nichtkonvexer Zielfunktion in der unteren "
    "Ebene, PhD thesis, TU Bergakademie Freiberg, 2012",
    "YeZhu2010": "J. J. Ye, D. L. Zhu, New necessary optimality conditions for bilevel programs by combining "
    "the MPEC and value function approaches, SIAM J. Optim. 20 (2010) 1885-1905",
    "Yezza1996": "A. Yezza, First-order necessary optimality conditions for general bilevel programming "
    "problems, J. Optim. Theory Appl. 89 (1996) 189-219",
}
